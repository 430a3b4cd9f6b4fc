"""Stop signals and the deadman, each in a process of its own (LIFE-01, row 28)."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from neuron.runtime.lifecycle import EXIT_DEADMAN, Deadman, StopSignals

ROOT = Path(__file__).parents[2]

DAEMON = """
import anyio, signal, sys, time
from neuron.runtime import logs
from neuron.runtime.lifecycle import Deadman, StopSignals

async def main():
    logs.configure_logging("info")
    asked = anyio.Event()
    def stop(name):
        print("stop", name, flush=True)
        asked.set()
    with StopSignals(stop):
        print("ready", flush=True)
        BODY

anyio.run(main)
"""


def _start(body: str) -> subprocess.Popen[bytes]:
    code = DAEMON.replace("BODY", body.replace("\n", "\n        "))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def _next(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_for_an_orderly_end(number: signal.Signals) -> None:
    process = _start("await asked.wait()\nprint('drained', flush=True)")
    process.send_signal(signal.SIGHUP)  # ignored
    process.send_signal(number)
    assert _next(process) == f"stop {number.name}\n".encode()
    assert _next(process) == b"drained\n"
    _, err = process.communicate(timeout=60)
    assert (err, process.returncode) == (b"", 0)


@pytest.mark.parametrize(
    "body",
    ["await anyio.sleep_forever()", "await asked.wait()\nprint('stuck', flush=True)\nwhile True: time.sleep(60)"],
    ids=["draining", "loop stuck"],
)
def test_the_second_signal_ends_at_once(body: str) -> None:
    process = _start(body)
    process.send_signal(signal.SIGINT)
    assert _next(process) == b"stop SIGINT\n"
    if "stuck" in body:
        assert _next(process) == b"stuck\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    (line,) = err.splitlines()
    assert json.loads(line)["signal"] == "SIGTERM"


def test_a_hanging_end_is_cut_by_the_deadman() -> None:
    process = _start("await asked.wait()\nDeadman(0.2, describe=lambda: '1 model').arm()\nwhile True: time.sleep(60)")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_DEADMAN
    (line,) = err.splitlines()
    assert json.loads(line)["stuck"] == "1 model"


def test_native_code_that_locks_the_interpreter_is_cut_too() -> None:
    process = _start("await asked.wait()\nimport ctypes\nDeadman(0.1).arm()\nctypes.PyDLL(None).sleep(120)")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 1


def test_a_disarmed_deadman_does_nothing() -> None:
    with Deadman(0.01) as deadman:
        deadman.disarm()
        deadman.arm()
    deadman.disarm()


@pytest.mark.anyio
async def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    asked = anyio.Event()
    left: list[int] = []
    with StopSignals(lambda name: asked.set(), leave=left.append) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        await asked.wait()
        assert signals.received == "SIGTERM"
        assert left == []
        os.kill(os.getpid(), signal.SIGINT)
        assert left == [128 + signal.SIGINT]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before
