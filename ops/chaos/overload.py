"""`python -m ops.chaos.overload`: many more clients than the queue holds; answers and 429 only, /health all along.

The clients are bare sockets, one each, and /health is asked by a process of its own: a library's connection pool with
hundreds of places takes longer than the daemon does, and would be what is measured.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.clients import TARGET
from tests.harness.daemon import DaemonProcess
from tests.harness.rows import rows, turn

QUEUE = 32
PIECES = ("a", "b", "c", "d")
WATCH_EVERY_S = 0.05
PATIENCE_S = 120.0


@dataclass(slots=True)
class Seen:
    """What the clients got: how many of each status, wrong answers, seconds of each answer and each refusal."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)


class Bare:
    """One kept connection. Bodies come with a Content-Length, as all answers here do."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Bare":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers with names in lower case, body."""
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await self._reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, body

    def close(self) -> None:
        self._writer.close()


def _request(daemon: DaemonProcess, number: int) -> bytes:
    body = json.dumps(daemon.chat_body(TARGET, f"client {number}")).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"X-Helexa-Account-Id: c{number}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _client(daemon: DaemonProcess, number: int, end: float, seen: Seen) -> None:
    """Asks again as soon as it is answered; a refused one waits a second at most."""
    connection, request = await Bare.open(daemon.port), _request(daemon, number)
    try:
        while time.monotonic() < end:
            before = time.perf_counter()
            async with asyncio.timeout(PATIENCE_S):
                status, headers, body = await connection.ask(request)
            seen.statuses[status] += 1
            took = time.perf_counter() - before
            if status == 429:
                seen.refusals.append(took)
                await asyncio.sleep(min(1.0, float(headers["retry-after"])))
            elif status == 200:
                seen.answers.append(took)
                if b'"abcd"' not in body:
                    seen.wrong.append(body[:200].decode("utf-8", "replace"))
    finally:
        connection.close()


async def _crowd(daemon: DaemonProcess, clients: int, seconds: float) -> Seen:
    seen, end = Seen(), time.monotonic() + seconds
    await asyncio.gather(*(_client(daemon, number, end, seen) for number in range(clients)))
    return seen


def watch(port: int, seconds: float) -> list[float]:
    """Seconds that each /health took, asked again and again on one connection."""
    took: list[float] = []
    end = time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        answer = sock.makefile("rb")
        while time.monotonic() < end:
            before = time.perf_counter()
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            status, length = answer.readline().split()[1], 0
            while (line := answer.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            answer.read(length)
            took.append(time.perf_counter() - before)
            if status != b"200":
                raise AssertionError(f"/health answered {status!r}")
            time.sleep(WATCH_EVERY_S)
    return took


def overload(daemon: DaemonProcess, clients: int, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", __name__ if __name__ != "__main__" else "ops.chaos.overload"]
    command += ["--watch", str(daemon.port), "--seconds", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as watcher:
        seen = asyncio.run(_crowd(daemon, clients, seconds))
        output, _ = watcher.communicate(timeout=PATIENCE_S)
    assert watcher.returncode == 0
    figures = next(model for model in daemon.get("/health")["models"] if TARGET in model["id"])
    return {
        "clients": clients,
        "queue": QUEUE,
        "seconds": seconds,
        "statuses": dict(seen.statuses),
        "wrong": seen.wrong,
        "health_ms": spread(json.loads(output)),
        "refusal_ms": spread(seen.refusals),
        "answer_ms": spread(seen.answers),
        "permits_held": figures["in_flight"] + figures["queue_depth"],
        "counted_refusals": figures["rejected_queue_full"],
    }


def spread(seconds: Sequence[float]) -> dict[str, float]:
    ranked = sorted(round(value * 1000, 1) for value in seconds) or [0.0]
    shares = {name: ranked[min(len(ranked) - 1, int(share * len(ranked)))] for name, share in SHARES}
    return {"count": len(seconds), **shares, "max": ranked[-1]}


SHARES = (("p50", 0.5), ("p99", 0.99))


def run(clients: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="neuron-overload-") as directory:
        script = [turn(*PIECES, when="client", delay_ms=2)]
        with rows(Path(directory), script, limits=f"queue_per_model = {QUEUE}\nqueue_seconds = 120.0") as held:
            return overload(held.daemon, clients, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.chaos.overload", description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--watch", type=int, metavar="PORT", help="only ask /health on this port, and print seconds")
    options = parser.parse_args(arguments)
    if options.watch is not None:
        sys.stdout.write(json.dumps(watch(options.watch, options.seconds)) + "\n")
        return 0
    figures = run(options.clients, options.seconds)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0 if set(figures["statuses"]) <= {200, 429} and not figures["wrong"] and not figures["permits_held"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
