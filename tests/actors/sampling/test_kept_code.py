"""The sampler's machine code: compiled once, then read; and nothing that a greedy answer waits for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neuron.actors.sampling import sampler
from neuron.actors.sampling.params import ResolvedSampling

_PROGRAM = """
from numba.core.registry import cpu_target
from neuron.actors.sampling import loops
from neuron.actors.sampling.kernels import Kernels
from neuron.actors.sampling.sampler import warm_up
loaded = []
cpu_target.target_context.load_additional_registries = lambda: loaded.append(1)
warm_up()
used = [getattr(loops, name).stats for name in Kernels._fields]
print(sum(sum(stats.cache_misses.values()) for stats in used), sum(sum(stats.cache_hits.values()) for stats in used))
print(len(loaded))
"""


def run(folder: Path, program: str = _PROGRAM) -> list[int]:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, check=True)
    return [int(number) for number in done.stdout.split()]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_second_process_compiles_nothing_and_keeps_nothing(tmp_path: Path) -> None:
    run(tmp_path, _PROGRAM.replace("cpu_target.target_context.load_additional_registries", "unused"))
    kept = files(tmp_path)
    misses, hits, loaded = run(tmp_path)
    assert (misses, hits) == (0, 9)
    assert loaded == 0, "what compiles was loaded although all code was kept"
    assert files(tmp_path) == kept


def test_damaged_files_are_compiled_anew(tmp_path: Path) -> None:
    program = _PROGRAM.replace("cpu_target.target_context.load_additional_registries", "unused")
    run(tmp_path, program)
    for path in files(tmp_path):
        path.write_bytes(b"\x80damaged")
    misses, hits, _ = run(tmp_path, program)
    assert (misses, hits) == (9, 0)


@pytest.mark.parametrize(
    ("params", "top_logprobs", "waits"),
    [
        (ResolvedSampling(temperature=0.0), None, False),
        (ResolvedSampling(temperature=0.0), 0, True),
        (ResolvedSampling(temperature=0.7), None, True),
        (ResolvedSampling(top_k=1), None, False),
    ],
)
def test_a_greedy_answer_does_not_wait_for_compiled_loops(
    params: ResolvedSampling, top_logprobs: int | None, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "ready", lambda: False)
    assert sampler.must_warm_up(params, top_logprobs) is waits
    monkeypatch.setattr(sampler, "ready", lambda: True)
    assert not sampler.must_warm_up(params, top_logprobs)
