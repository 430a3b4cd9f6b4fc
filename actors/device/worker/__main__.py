"""Entry of a device process: `python -m neuron.actors.device.worker --fd N --parent PID ...`."""

import contextlib
import faulthandler
import gc
import importlib
import os
import sys

from neuron.actors.device.spare import WITH_LIBRARIES
from neuron.runtime.child import (
    bind_to_parent,
    exit_when_closed,
    leave_signals_to_parent,
    link_socket,
    parse_child_arguments,
    volunteer_for_oom,
)

#: How OpenMP threads of the library wait for their next piece of work: a moment at full speed, then asleep. Without
#: this they hold their cores for milliseconds, against neighbours and against this process's own threads.
_CALM_THREADS = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}


def main() -> int:
    # Read by the libraries when they are loaded, which is later.
    for name, value in _CALM_THREADS.items():
        os.environ.setdefault(name, value)
    arguments = parse_child_arguments(sys.argv[1:])
    bind_to_parent(arguments.parent)
    leave_signals_to_parent()
    volunteer_for_oom()
    faulthandler.enable()
    sock = link_socket(arguments.fd)
    exit_when_closed(sock)

    if WITH_LIBRARIES in sys.argv:
        _import_libraries()

    from neuron.actors.device.jobs import Job
    from neuron.actors.device.worker.loop import WorkerLoop
    from neuron.runtime.link import BlockingLink
    from neuron.runtime.logs import configure_logging, flush_logs

    configure_logging(_option("--log-level") or "info", "json", device=_option("--device"))
    status = WorkerLoop(BlockingLink(sock, Job), pid=os.getpid()).run()
    flush_logs(1.0)
    return status


def _import_libraries() -> None:
    """What every model with weights needs, before it is asked for. A failure comes out at the load that misses it."""
    # Nothing of it becomes garbage: looking through it again and again takes a tenth of the time.
    gc.disable()
    with contextlib.suppress(Exception):
        importlib.import_module("neuron.kernels.load")
    gc.freeze()
    gc.enable()


def _option(name: str) -> str | None:
    """For logging only: what the process is to do arrives as Hello."""
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv[:-1] else None


if __name__ == "__main__":
    # Not sys.exit: a faulted device context can hang the library's own exit handlers.
    os._exit(main())
