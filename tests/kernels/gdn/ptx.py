"""Compile every CUDA kernel to PTX and assemble it, without a device; results are kept between runs."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import neuron.kernels

CAPABILITIES = ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0))
_ROOT = Path(neuron.kernels.__file__).resolve().parent
_CACHE = Path(__file__).resolve().parents[3] / ".cache" / "ptx"


@dataclass(frozen=True, slots=True)
class Assembled:
    """What ptxas says of a kernel, bytes but for `registers`."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int


def builds() -> dict[str, tuple[Callable[[], Any], Callable[[], Any], int]]:
    """Name -> (kernel, signature, threads), at the widths of the published models."""
    from neuron.kernels.gdn.chunk import cuda as chunk
    from neuron.kernels.gdn.conv_full import cuda as conv_full
    from neuron.kernels.gdn.conv_update import cuda as conv_update
    from neuron.kernels.gdn.decode import cuda as decode
    from neuron.kernels.gdn.gating import cuda as gating
    from neuron.kernels.gdn.recurrent import cuda as recurrent

    def as_is(function: Any) -> Callable[[], Any]:
        return lambda: function

    found: dict[str, tuple[Callable[[], Any], Callable[[], Any], int]] = {
        "gating": (as_is(gating.gating), gating.signature, gating.THREADS),
        "conv_update": (as_is(conv_update.conv_update), conv_update.signature, conv_update.THREADS),
        "conv_full": (as_is(conv_full.conv_full), conv_full.signature, conv_full.THREADS),
        "remember": (as_is(conv_full.remember), conv_full.remember_signature, conv_full.THREADS),
        "recurrent": (partial(recurrent.make, 128, 32, 4), recurrent.signature, 128),
        "chunk prepare": (partial(chunk.make_prepare, 128, 64, 16), chunk.prepare_signature, chunk.PREPARE_THREADS),
        "chunk scan": (partial(chunk.make_scan, 128, 64, 32), chunk.scan_signature, 32 * chunk.SCAN_GROUPS),
    }
    for bfloat16 in (False, True):
        name = f"decode {'bfloat16' if bfloat16 else 'float32'}"
        make = partial(decode.make, 128, 128, 4, bfloat16=bfloat16)
        found[name] = (make, partial(decode.signature, bfloat16=bfloat16), 512)
    return found


def assembled(name: str, capability: tuple[int, int]) -> Assembled:
    """Compiled and assembled, or remembered from a run over the same sources and compilers."""
    path = _CACHE / _state() / f"{name.replace(' ', '-')}-{capability[0]}{capability[1]}.json"
    if path.exists():
        return Assembled(**json.loads(path.read_text()))
    from neuron.kernels.cuda import to_ptx

    make, signature, threads = builds()[name]
    found = _assemble(to_ptx(make(), signature(), capability, threads), capability)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(asdict(found)))
    temporary.replace(path)
    return found


def ptxas() -> Path | None:
    """The assembler that the compiler's wheel carries."""
    found = importlib.util.find_spec("nvidia")
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        for path in Path(folder).glob("*/bin/ptxas"):
            return path
    return None


def _assemble(ptx: str, capability: tuple[int, int]) -> Assembled:
    program = ptxas()
    assert program is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        name = f"sm_{capability[0]}{capability[1]}"
        command = [str(program), "-v", "--gpu-name", name, str(source), "-o", str(source.with_suffix(".cubin"))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr

    def number(pattern: str) -> int:
        match = re.search(pattern, done.stderr)
        return int(match[1]) if match else 0

    return Assembled(
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes spill stores"),
        number(r"(\d+) bytes spill loads"),
        number(r"(\d+) bytes smem"),
    )


def _state() -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in [_ROOT / "cuda.py", *sorted((_ROOT / "gdn").rglob("*.py"))]:
        digest.update(path.read_bytes())
    for package in ("numba-cuda", "numba", "nvidia-nvvm", "nvidia-cuda-nvcc"):
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()[:16]
