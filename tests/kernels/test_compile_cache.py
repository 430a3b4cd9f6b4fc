"""Where compiled code is kept, what makes it stale, and that nothing on disk can do harm."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from neuron.kernels import compile_cache
from neuron.kernels.compile_cache import cache_directory, digest_of, prune

_PROGRAM = """
import sys
import numba.core.dispatcher as dispatcher
from neuron.kernels.threads import Team, meet
misses = 0
team = Team(1)
team.run(meet, team.barrier_state)
print(sum(meet.stats.cache_misses.values()), sum(meet.stats.cache_hits.values()))
"""

_ALIKE = """
import sys
from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant.memory import keep_apart

def adder(by):
    def add(x):
        keep_apart()
        return x + by
    return inlined(add)

one, two = adder(1), adder(2)

@compiled
def add_one(x):
    return one(x)

@compiled
def add_two(x):
    return two(x)

functions = {"one": add_one, "two": add_two}
print(*(functions[name](40) for name in sys.argv[1:]))
"""


def compile_in(folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    return subprocess.Popen([sys.executable, "-c", _PROGRAM], env=environment, stdout=subprocess.PIPE, text=True)


def finished(child: subprocess.Popen[str]) -> tuple[int, int]:
    """Compiled, read."""
    out, _ = child.communicate(timeout=240)
    assert child.returncode == 0
    compiled, read = out.split()
    return int(compiled), int(read)


def test_processes_that_start_at_once_compile_once(tmp_path: Path) -> None:
    children = [compile_in(tmp_path) for _ in range(3)]
    assert sorted(finished(child) for child in children) == [(0, 1), (0, 1), (1, 0)]


def test_damaged_files_are_compiled_anew(tmp_path: Path) -> None:
    assert finished(compile_in(tmp_path)) == (1, 0)
    for path in tmp_path.rglob("*.nb?"):
        path.write_bytes(b"\x80damaged")
    assert finished(compile_in(tmp_path)) == (1, 0)
    assert finished(compile_in(tmp_path)) == (0, 1)


def test_kept_code_is_read_without_loading_what_compiles(tmp_path: Path) -> None:
    assert finished(compile_in(tmp_path)) == (1, 0)
    unused = (
        "\nfrom numba.core.registry import cpu_target\ncpu_target.target_context.load_additional_registries = None\n"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", unused + _PROGRAM], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.split() == ["0", "1"]


def test_functions_that_look_alike_are_not_taken_for_each_other(tmp_path: Path) -> None:
    """Two processes keep one function each; a third loads both. Their helpers share name and type."""
    program = tmp_path / "alike.py"
    program.write_text(_ALIKE)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def results(*names: str) -> list[int]:
        command = [sys.executable, str(program), *names]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        return [int(word) for word in done.stdout.split()]

    assert results("one") == [41]
    assert results("two") == [42]
    assert results("one", "two") == [41, 42]
    assert results("two", "one") == [42, 41]


def test_a_folder_that_cannot_be_written_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(file))
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path / "service"))
    assert cache_directory.__wrapped__() == tmp_path / "service" / "kernels"
    monkeypatch.setenv("CACHE_DIRECTORY", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory.__wrapped__() == tmp_path / "xdg" / "neuron" / "kernels"


def test_the_digest_covers_what_is_imported_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "kernels"
    (package / "deep").mkdir(parents=True)
    (package / "top.py").write_text("from neuron.kernels.deep import (\n    first,\n)\n")
    (package / "deep" / "first.py").write_text("from neuron.kernels.deep.second import helper\n")
    (package / "deep" / "second.py").write_text("from neuron.kernels.top import circle\n")
    (package / "deep" / "other.py").write_text("")
    monkeypatch.setattr(compile_cache, "_PACKAGE", package)

    def digest() -> str:
        compile_cache._looked_at.cache_clear()
        return digest_of.__wrapped__(package / "top.py")

    before = digest()
    (package / "deep" / "other.py").write_text("changed = 1\n")
    assert digest() == before
    (package / "deep" / "second.py").write_text("changed = 1\n")
    assert digest() != before


def test_the_step_depends_on_the_row_kernels_and_not_on_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = Path.read_bytes

    def noting(path: Path) -> bytes:
        read.append(path.name)
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", noting)
    compile_cache._looked_at.cache_clear()
    digest_of.__wrapped__(Path(compile_cache.__file__).parent / "decoder" / "step.py")
    assert {"step.py", "rows.py", "emit.py", "plan.py", "ggml_types.py"} <= set(read)
    assert not {"load.py", "model.py", "sequence.py"} & set(read)


def test_folders_without_use_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache, "cache_directory", lambda: tmp_path)
    for name in ("old", "used"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.nbc").write_bytes(b"x")
    long_ago = time.time() - 2 * compile_cache.KEEP_SECONDS
    os.utime(tmp_path / "old", (long_ago, long_ago))
    assert prune() == 1
    assert [folder.name for folder in tmp_path.iterdir()] == ["used"]
