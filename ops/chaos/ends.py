"""`python -m ops.chaos.ends`: the daemon killed, and asked to stop, over and over; nothing may be left."""

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from neuron.runtime import shm
from tests.harness.clients import Stream
from tests.harness.daemon import DaemonProcess, say
from tests.harness.rows import alive

MOMENTS = ("idle", "load", "decode")
BOUND_S = 5.0
SCRIPTS = {"m": say("tick ", repeat=True, delay_ms=10), "n": say("x")}
CONFIG = (
    "[server]\nshutdown_seconds = 0.5\n"
    '[[models]]\nid = "scripted:test/m"\ndevices = ["cpu"]\n[[models]]\nid = "scripted:test/n"\ndevices = ["cpu:1"]\n'
)


def end(number: signal.Signals, moment: str) -> dict[str, Any]:
    """One daemon with two device processes, ended at `moment`. `left`: what outlived the bound."""
    with DaemonProcess(SCRIPTS, CONFIG, models=[], wait=moment != "load") as daemon:
        if moment == "load":
            while not daemon.device_pids:
                time.sleep(0.01)
        if moment == "decode":
            with Stream(daemon, "hi", "m", max_tokens=4000) as stream:
                stream.read(deltas=1)
                return _end(daemon, number, moment)
        return _end(daemon, number, moment)


def _end(daemon: DaemonProcess, number: signal.Signals, moment: str) -> dict[str, Any]:
    pids = daemon.descendants()
    began = time.perf_counter()
    daemon.send_signal(number)
    status = daemon.process.wait(60.0)
    exit_s = time.perf_counter() - began
    while (left := [pid for pid in pids if alive(pid)]) and time.perf_counter() - began < exit_s + BOUND_S:
        time.sleep(0.005)
    segments = [name for name in os.listdir(shm.DIRECTORY) if name.startswith(f"{shm.PREFIX}-{daemon.pid}-")]
    return {
        "signal": number.name,
        "moment": moment,
        "status": status,
        "exit_s": round(exit_s, 3),
        "gone_s": round(time.perf_counter() - began, 3),
        "left": len(left) + len(segments),
    }


def right(outcome: dict[str, Any]) -> bool:
    expected = 0 if outcome["signal"] == "SIGTERM" else -signal.SIGKILL
    return bool(outcome["left"] == 0 and outcome["status"] == expected)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.chaos.ends", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="of each signal")
    parser.add_argument("--signal", choices=("SIGKILL", "SIGTERM"), action="append", help="default: both")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    wrong = 0
    for name in options.signal or ("SIGKILL", "SIGTERM"):
        rng = random.Random(options.seed)
        outcomes: list[dict[str, Any]] = []
        for _ in range(options.count):
            outcomes.append(end(signal.Signals[name], rng.choice(MOMENTS)))
            say_line(outcomes[-1])
        good = sum(right(outcome) for outcome in outcomes)
        wrong += len(outcomes) - good
        slowest = {key: max(outcome[key] for outcome in outcomes) for key in ("exit_s", "gone_s")}
        say_line({"signal": name, "runs": len(outcomes), "right": good, "slowest": slowest})
    return 1 if wrong else 0


def say_line(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
