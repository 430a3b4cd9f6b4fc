"""The actor runtime: mailboxes, processes, links, shared memory, supervision, logging, lifecycle.

Knows nothing about language models or HTTP. Where to look:

    actor, mailbox            one task, one bounded queue, four hooks, typed errors for everyone who waits
    supervisor, restarts      trees of children, one_for_one, restart budgets
    launch, process, child    child processes: their start, the daemon's side, the child's first lines
    confined, confined_pool   helper processes for untrusted input: limits on themselves, and the daemon's side
    workers                   a fixed number of threads for what would block the event loop
    link, frames              typed messages over a socketpair: both ends, and the bytes between them
    shm, mapping              shared memory: slots with stamps, plain bytes; the mapped files below them
    logs, levels, log_render, log_writer   events, the line they become, the thread that writes it
    config                    a TOML file and the environment as one settings struct
    lifecycle, notify         stop signals and the deadman; notices to the service manager
    errors                    the root of the error tree
"""
