"""`python -m ops.gpu_check.child STAGE DEVICE SIZE SECONDS BANDWIDTH MATRIX_RATE`: one stage, its result as JSON."""

import sys
import time

import msgspec

from ops.gpu_check.report import Ceilings, StageResult


def main() -> None:
    result = _result(*sys.argv[1:7])
    sys.stdout.write("\n" + msgspec.json.encode(result).decode() + "\n")
    sys.stdout.flush()


def _result(name: str, device: str, size: str, seconds: str, bandwidth: str, matrix_rate: str) -> StageResult:
    until, ceilings = time.monotonic() + float(seconds), Ceilings(float(bandwidth), float(matrix_rate))
    try:
        import torch

        from ops.gpu_check.context import Context
    except ImportError as error:
        result = StageResult(name)
        result.failed(f"{error.name} is not installed")
        return result
    from ops.gpu_check import stages

    return stages.run(name, Context(torch.device(device), size == "small", until, ceilings))


if __name__ == "__main__":
    main()
