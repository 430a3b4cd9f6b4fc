"""Rules of the house that a type checker cannot see, and that importing the runtime does no work."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("runtime", "actors", "api", "kernels") for path in (ROOT / folder).rglob("*.py"))
RUNTIME = [path for path in FILES if path.is_relative_to(ROOT / "runtime")]
UNPICKLERS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_nothing_reads_a_format_that_runs_code() -> None:
    assert len(FILES) > 50
    assert [str(path) for path in FILES if UNPICKLERS & set(_imports(path))] == []


def test_the_runtime_uses_neither_forks_nor_the_pickling_machinery() -> None:
    """Of multiprocessing only its shared memory, of concurrent only threads, each in one file; never processes, pipes
    or queues."""
    users = [path for path in RUNTIME if {"multiprocessing", "concurrent"} & set(_imports(path))]
    assert [path.name for path in users] == ["mapping.py", "workers.py"]
    nodes = [node for path in users for node in ast.walk(ast.parse(path.read_text()))]
    assert not [
        node
        for node in nodes
        if isinstance(node, ast.Import) and node.names[0].name.startswith(("multi", "concurrent"))
    ]
    taken = {
        f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("multiprocessing", "concurrent"))
        for alias in node.names
    }
    assert taken == {
        "multiprocessing.resource_tracker",
        "multiprocessing.shared_memory.SharedMemory",
        "concurrent.futures.ThreadPoolExecutor",
    }


def test_deadlines_are_monotonic() -> None:
    """Row 60: a jump of the wall clock moves no time limit."""
    for path in RUNTIME:
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
        names = {f"{node.value.id}.{node.attr}" for node in calls if isinstance(node.value, ast.Name)}
        assert not {"time.time", "time.time_ns"} & names, path


def test_importing_does_no_work() -> None:
    """LIFE-06: no process, no thread, no descriptor, no signal handler."""
    modules = sorted({path.stem for path in RUNTIME} - {"__init__"})
    code = (
        "import importlib, os, signal, sys, threading\n"
        "import anyio, asyncio, msgspec, numpy, structlog\n"
        "def state():\n"
        "    handlers = [signal.getsignal(number) for number in (1, 2, 13, 15)]\n"
        "    return len(os.listdir('/proc/self/fd')), os.listdir('/proc/self/task'), sys.excepthook, handlers\n"
        "before = state()\n"
        f"for module in {modules}:\n"
        "    importlib.import_module('neuron.runtime.' + module)\n"
        "    assert state() == before, module\n"
        "assert not {'torch', 'numba', 'quart', 'multiprocessing.connection'} & set(sys.modules)\n"
        "assert not {'api', 'actors', 'runtime', 'kernels'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
