"""The child's side of a confined helper process: limits on itself, and a loop that answers one frame with one frame.

For processes that work on untrusted input (chat templates, images). What they need must be imported before `confine`.
"""

import resource
import socket
import sys
import time
from collections.abc import Callable

MAX_FRAME = 160 << 20
"""Above any legal request or answer of any helper."""


class Disconnected(Exception):
    """The other end is gone, or sent a frame that cannot be trusted."""


def send_frame(link: socket.socket, payload: bytes) -> None:
    """4-byte big-endian length, then the payload."""
    link.sendall(len(payload).to_bytes(4, "big") + payload)


def receive_frame(link: socket.socket) -> bytearray:
    """One whole frame. Raises Disconnected; TimeoutError when the socket has a timeout."""
    length = int.from_bytes(_exactly(link, 4), "big")
    if length > MAX_FRAME:
        raise Disconnected
    return _exactly(link, length)


def _exactly(link: socket.socket, count: int) -> bytearray:
    buffer = bytearray(count)
    view = memoryview(buffer)
    got = 0
    while got < count:
        read = link.recv_into(view[got:])
        if read == 0:
            raise Disconnected
        got += read
    return buffer


def confine(address_space: int) -> None:
    """No new files, sockets or processes, no core, bounded memory. After this only the inherited link works."""
    time.localtime()
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_AS, address_space),
    ):
        resource.setrlimit(limit, (value, value))


def allow_cpu_seconds(seconds: int) -> None:
    """The kernel ends this process (SIGXCPU) when it computes for longer than `seconds` from now."""
    used = time.process_time()
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + seconds + 1, hard))


def inherited_link() -> socket.socket:
    """The socket that the parent passed as `--fd N`."""
    return socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))


def serve(link: socket.socket, answer: Callable[[bytearray], bytes], *, cpu_seconds: int, no_memory: bytes) -> None:
    """Answer frames until the link ends. A MemoryError sends `no_memory` and ends the loop: the heap is suspect."""
    while True:
        try:
            frame = receive_frame(link)
        except (Disconnected, OSError):
            return
        allow_cpu_seconds(cpu_seconds)
        try:
            payload = answer(frame)
        except MemoryError:
            send_frame(link, no_memory)
            return
        send_frame(link, payload)
