"""`NUMBA_ENABLE_CUDASIM=1 python -m tests.ops.gpu_stages NAME...`: stages of ops.gpu_check on the CPU, as JSON."""

import sys
import time

import msgspec
import torch

from ops.gpu_check import environment, stages
from ops.gpu_check.context import Context
from ops.gpu_check.report import Ceilings


def main() -> None:
    context = Context(torch.device("cpu"), True, time.monotonic() + 200, Ceilings(1e9, 1e9))
    found = [stages.run(name, context) for name in sys.argv[1:]]
    found[0].figures["numba_launches"] = environment.launches(context)
    sys.stdout.write("\n" + msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main()
