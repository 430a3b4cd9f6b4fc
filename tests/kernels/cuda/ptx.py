"""Kernels compiled to PTX for each supported capability and assembled; results are kept between runs."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import neuron.kernels

CAPABILITIES = ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0))
#: Of a multiprocessor: four quarters, each with registers for the warps that it runs. A thread can name 255 of them;
#: they are given out by eights.
QUARTERS, QUARTER_REGISTERS, MOST_REGISTERS, GRANTED = 4, 16_384, 255, 8
#: Shared memory that a kernel has without asking the driver for more.
MOST_SHARED, MOST_THREADS, WARP = 48 * 1024, 1024, 32
_ROOT = Path(neuron.kernels.__file__).resolve().parent
_CACHE = Path(__file__).resolve().parents[3] / ".cache" / "ptx"


@dataclass(frozen=True, slots=True)
class Assembled:
    """What ptxas says of a kernel, bytes but for `registers`. `bound`: threads of a block that the PTX names.

    `unresolved`: functions that only a linker with more sources could find.
    """

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    bound: int
    unresolved: int


@dataclass(frozen=True, slots=True)
class Build:
    """A kernel, made and typed when it is compiled. `threads`: of the block it is launched with; `blocks` as there."""

    make: Callable[[], Any]
    signature: Callable[[], Any]
    threads: int
    capabilities: tuple[tuple[int, int], ...] = CAPABILITIES
    blocks: int | None = None


def assembled(name: str, build: Build, sources: Iterable[str]) -> dict[str, Assembled]:
    """By target. Compiled and assembled, or remembered from a run over the same `sources` (of kernels/) and tools."""
    path = _CACHE / _state(tuple(sources)) / f"{name.replace(' ', '-')}.json"
    if path.exists():
        return {target: Assembled(**found) for target, found in json.loads(path.read_text()).items()}
    from neuron.kernels.cuda import to_ptx

    texts = to_ptx(build.make(), build.signature(), build.capabilities, build.threads, build.blocks)
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(texts, pool.map(_assemble, texts, texts.values()), strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps({target: asdict(one) for target, one in found.items()}))
    temporary.replace(path)
    return found


def check(found: dict[str, Assembled], build: Build) -> None:
    """Nothing of a thread lives in memory, and a block of whole warps fits a multiprocessor, on every capability."""
    assert len(found) == len(build.capabilities)
    assert build.threads % WARP == 0
    assert build.threads <= MOST_THREADS
    for target, one in found.items():
        assert (one.stack, one.spill_stores, one.spill_loads, one.unresolved) == (0, 0, 0, 0), target
        assert one.bound == build.threads, target
        assert 0 < one.registers <= MOST_REGISTERS, target
        granted = -(-one.registers // GRANTED) * GRANTED * WARP
        assert -(-(build.threads // WARP) // QUARTERS) * granted <= QUARTER_REGISTERS, target
        assert one.shared <= MOST_SHARED, target


def ptxas() -> Path | None:
    """The assembler that the compiler's wheel carries."""
    found = importlib.util.find_spec("nvidia")
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        for path in Path(folder).glob("*/bin/ptxas"):
            return path
    return None


def _assemble(target: str, ptx: str) -> Assembled:
    program = ptxas()
    assert program is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [str(program), "-v", "--gpu-name", target, str(source), "-o", str(source.with_suffix(".cubin"))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr

    def number(pattern: str, text: str = done.stderr) -> int:
        match = re.search(pattern, text)
        return int(match[1]) if match else 0

    return Assembled(
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes spill stores"),
        number(r"(\d+) bytes spill loads"),
        number(r"(\d+) bytes smem"),
        number(r"\.maxntid (\d+)", ptx),
        len(re.findall(r"^\s*\.extern\s+\.func", ptx, re.MULTILINE)),
    )


@cache
def _state(sources: tuple[str, ...]) -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for source in ("cuda.py", *sources):
        path = _ROOT / source
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    for package in ("numba-cuda", "numba", "nvidia-nvvm", "nvidia-cuda-nvcc"):
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()[:16]
