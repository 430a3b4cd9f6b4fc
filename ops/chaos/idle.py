"""`python -m ops.chaos.idle`: thousands of connections that say nothing; those above the cap are closed.

Row 53 of the fault matrix: what each of them costs the daemon, and what a client that does ask notices.
"""

import argparse
import json
import resource
import selectors
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from neuron.actors import limits
from ops.chaos.memory import held_bytes
from ops.chaos.overload import spread, watch
from tests.harness.daemon import DaemonProcess, say

SPARE_DESCRIPTORS = 200


def idle(daemon: DaemonProcess, connections: int, seconds: float) -> dict[str, Any]:
    """Opens the connections, then asks /health on one that was there first, for `seconds`."""
    before = held_bytes(daemon.pid)
    took: list[float] = []
    asking = threading.Thread(target=lambda: took.extend(watch(daemon.port, seconds)))
    asking.start()
    time.sleep(0.2)
    sockets: list[socket.socket] = []
    try:
        began = time.perf_counter()
        address = ("127.0.0.1", daemon.port)
        sockets.extend(socket.create_connection(address, timeout=30.0) for _ in range(connections))
        opened_s = time.perf_counter() - began
        asking.join()
        closed = _closed(sockets)
        return {
            "connections": connections,
            "cap": limits.CONNECTIONS.value,
            "opened_s": round(opened_s, 2),
            "kept": connections - closed,
            "closed": closed,
            "daemon_bytes": held_bytes(daemon.pid) - before,
            "health_ms": spread(took),
        }
    finally:
        for sock in sockets:
            sock.close()


def _closed(sockets: Sequence[socket.socket]) -> int:
    """How many the daemon has closed: only they have something to read, the end."""
    with selectors.DefaultSelector() as selector:
        for sock in sockets:
            selector.register(sock, selectors.EVENT_READ)
        return len(selector.select(0))


def run(connections: int, seconds: float) -> dict[str, Any]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, connections + SPARE_DESCRIPTORS)), hard))
    with DaemonProcess({"m": say("x")}) as daemon:
        figures = idle(daemon, connections, seconds)
        assert daemon.chat("m").status_code == 200
        return figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.chaos.idle", description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args(arguments)
    sys.stdout.write(json.dumps(run(options.connections, options.seconds)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
