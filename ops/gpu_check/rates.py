"""Stage `rates`: what memory and the library's bfloat16 products do here; the yardsticks of the later stages."""

import torch

from ops.gpu_check.context import Context
from ops.gpu_check.report import StageResult


def run(context: Context, result: StageResult) -> None:
    copied, read, rate = *_bandwidth(context), _matrix_rate(context)
    result.figures |= {
        "copy_bytes_per_s": copied,
        "read_bytes_per_s": read,
        "bandwidth_bytes_per_s": max(copied, read),
        "bf16_operations_per_s": rate,
    }
    result.lines.append(f"memory {max(copied, read) / 1e9:.0f} GB/s, bf16 products {rate / 1e12:.2f} Tflop/s")


def _bandwidth(context: Context) -> tuple[float, float]:
    """Bytes a second of a copy (each byte is read and written) and of a sum."""
    size = 1 << (22 if context.small else 31)
    source = torch.ones(size, dtype=torch.uint8, device=context.device)
    target = torch.empty_like(source)
    copied = 2 * size / context.seconds(lambda: target.copy_(source))
    wide = source.view(torch.float32)
    return copied, size / context.seconds(lambda: wide.sum())


def _matrix_rate(context: Context) -> float:
    side = 256 if context.small else 8192
    a, b = (torch.randn(side, side, device=context.device).to(torch.bfloat16) for _ in range(2))
    with torch.inference_mode():
        return 2 * side**3 / context.seconds(lambda: torch.mm(a, b))
