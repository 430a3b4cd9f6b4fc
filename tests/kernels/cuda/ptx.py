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
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import neuron.kernels

CAPABILITIES = ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0))
REGISTER_FILE, MOST_SHARED = 65_536, 48 * 1024
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


@dataclass(frozen=True, slots=True)
class Build:
    """A kernel, made and typed when it is compiled. `threads`: of the block it is launched with."""

    make: Callable[[], Any]
    signature: Callable[[], Any]
    threads: int


def assembled(name: str, build: Build, capability: tuple[int, int], sources: Iterable[str]) -> Assembled:
    """Compiled and assembled, or remembered from a run over the same `sources` (of kernels/) and compilers."""
    path = _CACHE / _state(tuple(sources)) / f"{name.replace(' ', '-')}-{capability[0]}{capability[1]}.json"
    if path.exists():
        return Assembled(**json.loads(path.read_text()))
    from neuron.kernels.cuda import to_ptx

    found = _assemble(to_ptx(build.make(), build.signature(), capability, build.threads), capability)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(asdict(found)))
    temporary.replace(path)
    return found


def check(found: Assembled, threads: int) -> None:
    """Nothing of a thread lives in memory, and the block fits a multiprocessor."""
    assert (found.stack, found.spill_stores, found.spill_loads) == (0, 0, 0)
    assert 0 < found.registers * threads <= REGISTER_FILE
    assert found.shared <= MOST_SHARED


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
