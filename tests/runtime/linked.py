"""A child program with a fresh socketpair, for the tests that talk to one."""

import socket
from collections.abc import Sequence

from neuron.runtime.process import ChildProcess

PROGRAMS = "tests.runtime.programs"


async def spawn_linked(arguments: Sequence[str]) -> tuple[ChildProcess, socket.socket]:
    """The process, named after its first argument, and our end, for a `Link`."""
    ours, theirs = socket.socketpair()
    try:
        child = await ChildProcess.spawn(PROGRAMS, link_fd=theirs.fileno(), name=arguments[0], arguments=arguments)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return child, ours
