"""Stage `faults`: real faults in processes of their own; does the table that classifies them know them?

`python -m ops.gpu_check.faults KIND DEVICE` is such a process.
"""

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable

import torch

from neuron.actors.device.worker.classify import classify, describe
from neuron.actors.device.worker.fault_table import Verdict
from neuron.actors.device.worker.platform import bind
from ops.gpu_check.context import Context
from ops.gpu_check.report import StageResult

#: Fault -> what the table must say, and whether the device must still compute afterwards.
_ON_CUDA: dict[str, tuple[Verdict, bool]] = {
    "illegal_address": (Verdict.FATAL, False),
    "device_assert": (Verdict.FATAL, False),
    "out_of_memory": (Verdict.OOM, True),
    "host_error": (Verdict.HOST, True),
}
_ON_CPU: dict[str, tuple[Verdict, bool]] = {
    "out_of_memory": (Verdict.OOM, True),
    "host_error": (Verdict.HOST, True),
}
_CHILD_SECONDS = 60.0
_FAR = 1 << 40


def run(context: Context, result: StageResult) -> None:
    for kind, (wanted, usable) in (_ON_CUDA if context.cuda else _ON_CPU).items():
        found = _child(kind, str(context.device), min(_CHILD_SECONDS, max(context.left, 1.0)))
        result.figures |= {f"{kind}_{key}": value for key, value in found.items()}
        if found.get("verdict") != wanted.value or found.get("usable") is not usable:
            result.failed(f"{kind} should be {wanted.value}, the device usable: {usable}; it was {found}")
    death = _child("death", str(context.device), _CHILD_SECONDS)
    if death != {"died": "signal 11"}:
        result.failed(f"a process that segfaults should be seen to die of signal 11, not: {death}")


def _child(kind: str, device: str, seconds: float) -> dict[str, str | int | bool]:
    command = [sys.executable, "-m", "ops.gpu_check.faults", kind, device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"died": f"no answer within {seconds:.0f} s"}
    # What it said first: a process whose device is gone may not end well.
    try:
        found: dict[str, str | int | bool] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        if done.returncode < 0:
            return {"died": f"signal {-done.returncode}"}
        return {"died": f"exit code {done.returncode}: {done.stderr[-300:]}"}
    return found


def provoke(kind: str, device: str) -> dict[str, str | int | bool]:
    """Fault, classification, and whether the device's own probe passes afterwards."""
    platform = bind(device)
    platform.probe()
    try:
        _FAULTS[kind](torch.device(device))
    except Exception as error:
        found = classify(error)
        result: dict[str, str | int | bool] = {"verdict": found.verdict.value, "rule": found.rule, "code": found.code}
        result["error"] = describe(error)[:300]
    else:
        result = {"verdict": "none"}
    try:
        platform.probe()
    except Exception:
        return result | {"usable": False}
    return result | {"usable": True}


def _illegal_address(device: torch.device) -> None:
    """A kernel of ours that stores far beyond its array."""
    from neuron.kernels.cuda import kernel, launch

    def store(values, place):  # type: ignore[no-untyped-def]
        values[place] = 1.0

    launch(kernel(store), (1,), 1, (torch.zeros(8, device=device), _FAR))
    torch.cuda.synchronize(device)


def _device_assert(device: torch.device) -> None:
    index = torch.full((4,), _FAR, dtype=torch.int64, device=device)
    torch.zeros(8, device=device).index_select(0, index)
    torch.cuda.synchronize(device)


def _out_of_memory(device: torch.device) -> None:
    torch.empty(_FAR, dtype=torch.int64, device=device)


def _host_error(device: torch.device) -> None:
    raise ValueError("an argument that does not fit")


def _death(device: torch.device) -> None:
    ctypes.string_at(0)


_FAULTS: dict[str, Callable[[torch.device], None]] = {
    "illegal_address": _illegal_address,
    "device_assert": _device_assert,
    "out_of_memory": _out_of_memory,
    "host_error": _host_error,
    "death": _death,
}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(provoke(sys.argv[1], sys.argv[2])) + "\n")
    sys.stdout.flush()
