"""Runs the stages one after another, each in a process of its own: a device that faults takes one stage with it.

Imports no torch: what is broken there must not break the report.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ops.gpu_check.report import Ceilings, Figure, Report, StageResult, Status, verdict
from ops.gpu_check.stages import STAGES, Stage

_ROOT = Path(__file__).resolve().parents[2]
_TOOLKIT = Path("/usr/local/cuda")
#: Kept back for the report.
_MARGIN_SECONDS = 3.0
_TAIL = 600

Say = Callable[[str], None]


def check(device: str, *, small: bool, budget_s: float, say: Say, stages: Sequence[Stage] = STAGES) -> Report:
    """All stages that the budget has room for. Ends within it, whatever a stage does."""
    begun = time.monotonic()
    results: list[StageResult] = []
    ceilings = Ceilings()
    for stage in stages:
        left = budget_s - (time.monotonic() - begun) - _MARGIN_SECONDS
        if left < stage.least:
            result = StageResult(stage.name, Status.SKIPPED, lines=[f"{max(left, 0):.0f} s were left of the budget"])
        else:
            say(f"{stage.name} ...")
            result = run_stage(stage, device, small, min(left, stage.most), ceilings)
        results.append(result)
        if stage.name == "rates":
            ceilings = _ceilings(result)
        for line in [f"{stage.name}: {result.status.value}, {result.seconds:.0f} s", *result.lines]:
            say(f"  {line}")
        if stage.name == "environment" and result.status in (Status.FAILED, Status.TIMEOUT):
            break
    name = next((str(result.figures["device"]) for result in results if "device" in result.figures), device)
    return Report(verdict(results), name, round(time.monotonic() - begun, 1), results)


def run_stage(stage: Stage, device: str, small: bool, seconds: float, ceilings: Ceilings) -> StageResult:
    """The stage's own word, or what became of its process."""
    arguments = [stage.name, device, "small" if small else "full", f"{seconds - 1:.1f}"]
    arguments += [repr(ceilings.bandwidth), repr(ceilings.matrix_rate)]
    environment = dict(os.environ)
    if not environment.keys() & {"CUDA_HOME", "CUDA_PATH"} and (_TOOLKIT / "nvvm").is_dir():
        # Where the compiler is no wheel of this Python's, numba-cuda looks for it there.
        environment["CUDA_HOME"] = str(_TOOLKIT)
    if not device.startswith("cuda"):
        environment["NUMBA_ENABLE_CUDASIM"] = "1"
    begun = time.monotonic()
    result = _spoken([sys.executable, "-m", "ops.gpu_check.child", *arguments], environment, seconds, stage.name)
    result.seconds = round(time.monotonic() - begun, 2)
    return result


def _spoken(command: list[str], environment: dict[str, str], seconds: float, name: str) -> StageResult:
    result = StageResult(name)
    try:
        done = subprocess.run(
            command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        result.failed(f"no answer within {seconds:.0f} s; the process was killed")
        result.status = Status.TIMEOUT
        return result
    try:
        return msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=StageResult)
    except msgspec.DecodeError:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        result.failed(f"the process ended with {how}: {done.stderr.strip()[-_TAIL:]}")
        return result


def _ceilings(rates: StageResult) -> Ceilings:
    return Ceilings(
        _number(rates.figures.get("bandwidth_bytes_per_s")), _number(rates.figures.get("bf16_operations_per_s"))
    )


def _number(figure: Figure) -> float:
    return float(figure) if isinstance(figure, int | float) else 0.0
