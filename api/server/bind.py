"""The listening socket, bound before anything heavy is imported: a taken port is told at once."""

import errno
import socket

from neuron.runtime.errors import ConfigError

BACKLOG = 512
#: Bytes of the kernel's send buffer of one connection: what a client that does not read can make us hold.
_SEND_BUFFER = 256 * 1024


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not accept yet. Raises ConfigError with one clear line."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror}.") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        sock.setblocking(False)
        sock.bind(address)
        # Listening here, not later, makes a second daemon on this port fail before it loads anything.
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} on {host} is taken by another program.") from error
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}.") from error
    return sock
