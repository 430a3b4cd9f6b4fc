"""Stage `tests`: what `pytest -m gpu` says here, in several processes: most of its time is compiling."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ops.gpu_check.context import Context
from ops.gpu_check.report import StageResult

_ROOT = Path(__file__).resolve().parents[2]
_SETTINGS = Path(__file__).resolve().with_name("pytest.ini")
_TESTS = ("tests/kernels/cuda/test_gpu.py",)
#: Compare with the published implementation, so they need it.
_ENGINE_TESTS = ("tests/kernels/layered/test_gpu.py",)
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|deselected)")
_MOST_LINES = 20
#: Each holds a context of the device and its own copy of the libraries.
_MOST_PROCESSES = 8
#: Kept back to end processes and to read what they said.
_MARGIN_SECONDS = 2.0
_UNFINISHED = 124


def run(context: Context, result: StageResult, tests: Sequence[str] | None = None) -> None:
    if importlib.util.find_spec("pytest") is None:
        result.missing("pytest is not installed: the tests on hardware did not run (pip install pytest)")
        return
    if tests is None:
        tests = _TESTS
        if importlib.util.find_spec("transformers") is None:
            result.missing("transformers is not installed: the tests of the whole engine on hardware did not run")
        else:
            tests += _ENGINE_TESTS
    end = time.monotonic() + context.left - _MARGIN_SECONDS
    found, code = _collected(tests, max(end - time.monotonic(), 1.0))
    if not found:
        read([(code, "no test was found")], result)
        return
    processes = min(_MOST_PROCESSES, os.cpu_count() or 1) if context.cuda else 1
    read(_said([found[first::processes] for first in range(min(processes, len(found)))], end), result)


def _command(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-c", str(_SETTINGS), "--rootdir", str(_ROOT), "-m", "gpu", "-q"]
    return [*command, "--no-header", *arguments]


def _collected(tests: Sequence[str], seconds: float) -> tuple[list[str], int]:
    """Ids of the tests, and pytest's exit code."""
    command = _command("--collect-only", *tests)
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return [], _UNFINISHED
    if done.returncode != 0:
        # Something cannot be imported: the run itself says what.
        return list(tests), done.returncode
    return [line for line in done.stdout.splitlines() if "::" in line], done.returncode


def _said(shares: Sequence[Sequence[str]], end: float) -> list[tuple[int, str]]:
    """Exit code and output of a process for each share; what still runs at `end` is killed."""
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"{number}.log" for number in range(len(shares))]
        running = []
        for share, log in zip(shares, logs, strict=True):
            with log.open("wb") as file:
                command = _command("-ra", "--tb=line", *share)
                running.append(subprocess.Popen(command, cwd=_ROOT, stdout=file, stderr=subprocess.STDOUT))
        said = []
        for process, log in zip(running, logs, strict=True):
            try:
                code = process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = _UNFINISHED
            said.append((code, log.read_text(errors="replace")))
    return said


def read(said: Sequence[tuple[int, str]], result: StageResult) -> None:
    """Counts and failures out of what the processes of pytest wrote. `said`: exit code and output of each."""
    counts: Counter[str] = Counter()
    skips: list[str] = []
    problems: list[str] = []
    for code, output in said:
        lines = output.strip().splitlines()
        counts.update({what.rstrip("s"): int(count) for count, what in _COUNT.findall(lines[-1] if lines else "")})
        result.lines += [line for line in lines if line.startswith(("FAILED", "ERROR"))][:_MOST_LINES]
        skips += [line for line in lines if line.startswith("SKIPPED")]
        if code == _UNFINISHED:
            problems.append(f"the tests did not end in time; last: {lines[-1] if lines else 'nothing'}")
        elif code not in (0, 5):
            problems.append(f"pytest ended with {code}: {lines[-1] if lines else 'nothing written'}")
    result.figures |= {name: counts[name] for name in ("passed", "failed", "skipped", "error")}
    if problems:
        result.failed("; ".join(dict.fromkeys(problems)))
    elif not counts["passed"]:
        result.missing(f"no test ran: {skips[0] if skips else 'none was found'}")
