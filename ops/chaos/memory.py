"""`python -m ops.chaos.memory`: bytes that every process of a daemon gains a request, over many scripted requests.

Private and shared anonymous memory and swap count (RssAnon, RssShmem, VmSwap), so that file pages say nothing.
"""

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.clients import TARGET
from tests.harness.daemon import DaemonProcess
from tests.harness.rows import Rows, command_line, rows, turn

#: The most that one request may leave behind, and the most that all of them may.
SLOPE_BYTES = 2048
TOTAL_BYTES = 16 << 20
KIB = 1024
ANSWER = "abcdefghijklmnop"
CLIENTS = 4


@dataclass(frozen=True, slots=True)
class Growth:
    """`samples`: (requests so far, bytes). The slope is the least-squares line through them."""

    process: str
    samples: tuple[tuple[int, int], ...]

    @property
    def slope(self) -> float:
        """Bytes a request."""
        count = len(self.samples)
        mean_x = sum(x for x, _ in self.samples) / count
        mean_y = sum(y for _, y in self.samples) / count
        spread = sum((x - mean_x) ** 2 for x, _ in self.samples)
        return sum((x - mean_x) * (y - mean_y) for x, y in self.samples) / spread if spread else 0.0

    @property
    def total(self) -> int:
        return self.samples[-1][1] - self.samples[0][1]

    def excess(self) -> str | None:
        """What is wrong, in words; None within both bounds."""
        if self.slope <= SLOPE_BYTES and self.total <= TOTAL_BYTES:
            return None
        return f"{self.process}: {self.slope:.0f} bytes a request, {self.total} bytes in all"


def held_bytes(pid: int) -> int:
    wanted = ("RssAnon:", "RssShmem:", "VmSwap:")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * KIB for line in lines if line.startswith(wanted))


def processes(daemon: DaemonProcess) -> dict[str, int]:
    """Name -> pid of the daemon and everything below it."""
    found = {"daemon": daemon.pid}
    for number, pid in enumerate(sorted(daemon.descendants())):
        words = command_line(pid).split("\0")
        module = next((word.rpartition(".")[2] for word in words if word.startswith("neuron.")), "child")
        found[f"{module} {number}"] = pid
    return found


def measure(held: Rows, *, warm_up: int, requests: int, samples: int) -> list[Growth]:
    """Growth of every process over `requests`, after `warm_up` of them."""
    ask(held, warm_up)
    pids = processes(held.daemon)
    taken: dict[str, list[tuple[int, int]]] = {name: [] for name in pids}
    for step in range(samples + 1):
        if step:
            ask(held, requests // samples)
        for name, pid in pids.items():
            taken[name].append((step * (requests // samples), held_bytes(pid)))
    return [Growth(name, tuple(points)) for name, points in taken.items()]


def ask(held: Rows, count: int) -> None:
    """`count` requests from a few clients at once, streamed and not; every answer is checked."""
    failures: list[str] = []
    lock = threading.Lock()
    left = iter(range(count))

    def client() -> None:
        with held.daemon.client(timeout=60.0) as http:
            while True:
                with lock:
                    number = next(left, None)
                if number is None:
                    return
                body = held.daemon.chat_body(TARGET, f"request {number}", stream=number % 2 == 0)
                response = http.post("/v1/chat/completions", json=body)
                if response.status_code != 200 or '"error"' in response.text:
                    failures.append(response.text[:200])

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise AssertionError(failures[0])


def with_daemon(work: Callable[[Rows], Any]) -> Any:
    with tempfile.TemporaryDirectory(prefix="neuron-memory-") as directory:
        with rows(Path(directory), [turn(*ANSWER, when="request")]) as held:
            return work(held)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.chaos.memory", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--warm-up", type=int, default=500)
    options = parser.parse_args(arguments)
    found: list[Growth] = with_daemon(
        lambda held: measure(held, warm_up=options.warm_up, requests=options.requests, samples=20)
    )
    for growth in found:
        line = {"process": growth.process, "bytes_a_request": round(growth.slope, 1), "total_bytes": growth.total}
        sys.stdout.write(json.dumps({**line, "requests": options.requests}) + "\n")
    excess = [growth.excess() for growth in found if growth.excess()]
    sys.stdout.write("\n".join(map(str, excess)) + ("\n" if excess else ""))
    return 1 if excess else 0


if __name__ == "__main__":
    raise SystemExit(main())
