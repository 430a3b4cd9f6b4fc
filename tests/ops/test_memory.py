"""Row 66 and the memory slope, in short: bytes are counted, and planted leaks are caught."""

import subprocess
import sys
from pathlib import Path

import pytest

from ops.chaos.memory import SLOPE_BYTES, TOTAL_BYTES, Growth, measure, with_daemon

ROOT = Path(__file__).parents[2]

REQUESTS = 600


def test_requests_leave_nothing() -> None:
    """600 requests here, 10,000 by hand (ops/docs/faults.md). The total bounds what so few can show of a slope."""
    found: list[Growth] = with_daemon(lambda held: measure(held, warm_up=300, requests=REQUESTS, samples=6))
    assert {growth.process.split()[0] for growth in found} >= {"daemon", "worker"}
    # Arenas fill in steps of a megabyte or so: a quarter of the allowance is room for that and for nothing else.
    over = [growth for growth in found if growth.total > TOTAL_BYTES // 4]
    assert over == []


PLANTED = """
import os
from ops.chaos.memory import held_bytes
kept = []
for step in range(7):
    if step:
        kept.extend(bytearray(b"x" * 8192) for _ in range(500))
    print(step * 500, held_bytes(os.getpid()))
"""


def test_a_planted_leak_is_caught() -> None:
    """Negative control: 8 KiB a request, in a process with no freed memory to fill first."""
    lines = subprocess.run([sys.executable, "-c", PLANTED], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    samples = [tuple(map(int, line.split())) for line in lines.splitlines()]
    growth = Growth("planted", tuple((requests, held) for requests, held in samples))
    assert growth.slope > 2 * SLOPE_BYTES
    assert growth.excess() is not None


@pytest.mark.parametrize(
    ("slope", "caught"), [(0, False), (SLOPE_BYTES - 1, False), (SLOPE_BYTES + 1, True), (8192, True)]
)
def test_the_bound(slope: int, caught: bool) -> None:
    growth = Growth("x", tuple((n, 1_000_000 + slope * n) for n in range(0, 1000, 100)))
    assert (growth.excess() is not None) is caught


def test_the_total_is_bounded_too() -> None:
    assert Growth("x", ((0, 0), (20_000, TOTAL_BYTES + 1))).excess() is not None
