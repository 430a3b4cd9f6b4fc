"""Stage `tests`: what `pytest -m gpu` says here."""

import importlib.util
import re
import subprocess
import sys
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
    command = [sys.executable, "-m", "pytest", "-c", str(_SETTINGS), "--rootdir", str(_ROOT), "-m", "gpu", "-q", "-ra"]
    command += ["--no-header", "--tb=line", *tests]
    try:
        done = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, timeout=max(context.left, 1.0), check=False
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        result.failed("the tests did not end in time")
        result.lines += str(output.decode() if isinstance(output, bytes) else output).splitlines()[-_MOST_LINES:]
        return
    read(done.stdout + done.stderr, done.returncode, result)


def read(output: str, code: int, result: StageResult) -> None:
    """Counts and failures out of what pytest wrote."""
    lines = output.strip().splitlines()
    counts = {what.rstrip("s"): int(count) for count, what in _COUNT.findall(lines[-1] if lines else "")}
    result.figures |= {name: counts.get(name, 0) for name in ("passed", "failed", "skipped", "error")}
    result.lines += [line for line in lines if line.startswith(("FAILED", "ERROR"))][:_MOST_LINES]
    if code not in (0, 5) or counts.get("failed") or counts.get("error"):
        result.failed(f"pytest ended with {code}: {lines[-1] if lines else 'nothing written'}")
    elif not counts.get("passed"):
        skips = [line for line in lines if line.startswith("SKIPPED")]
        result.missing(f"no test ran: {skips[0] if skips else 'none was found'}")
