"""ops.gpu_check without a GPU: every stage at tiny shapes on the CPU, and what the runner makes of missing things."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from ops.gpu_check import hardware_tests, runner
from ops.gpu_check.report import Ceilings, Report, StageResult, Status, Verdict, verdict
from ops.gpu_check.stages import BY_NAME, STAGES, Stage

_ROOT = Path(__file__).resolve().parents[2]
_IN_ONE_PROCESS = ("environment", "rates", "faults", "gdn", "kernels", "model-0.8B", "model-27B")


@cache
def results() -> dict[str, StageResult]:
    """What each stage reports, from one process in which numba.cuda is the simulator."""
    command = [sys.executable, "-m", "tests.ops.gpu_stages", *_IN_ONE_PROCESS]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=list[StageResult])
    return {result.name: result for result in found}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", _IN_ONE_PROCESS)
def test_a_stage_runs_on_the_cpu(name: str) -> None:
    result = results()[name]
    assert result.status is (Status.MISSING if name == "gdn" else Status.OK), result.lines


@pytest.mark.timeout(300)
def test_what_the_stages_measure() -> None:
    found = results()
    positive = {
        "rates": ("bandwidth_bytes_per_s", "bf16_operations_per_s"),
        "gdn": ("decode_s", "recurrent_63_s", "chunk_tensors_s"),
        "kernels": ("product_q4_0_1_s", "attention_s", "product_bf16_library_of_bandwidth"),
        "model-0.8B": ("prefill_16_tokens_per_s", "decode_16_step_s", "decode_16_of_bandwidth", "decode_16_device_s"),
        "model-27B": ("prefill_80_of_matrix_rate", "decode_16_tokens_per_s", "weight_bytes", "load_s"),
    }
    for stage, names in positive.items():
        for name in names:
            figure = found[stage].figures[name]
            assert isinstance(figure, int | float), name
            assert figure >= 0, name
    assert found["environment"].figures["numba_launches"] is True
    gap = found["model-27B"].figures["decode_16_gap_s"]
    assert isinstance(gap, float)
    assert found["faults"].figures["out_of_memory_verdict"] == "oom"
    assert found["faults"].figures["host_error_usable"] is True
    assert found["gdn"].lines == [
        "flash-linear-attention is not installed (or no GPU): GDN kernels are compared with nothing"
    ]


def test_what_pytest_says_is_read() -> None:
    """Of one process or several; what fails or is late in one of them counts."""

    def told(*said: tuple[int, str]) -> StageResult:
        result = StageResult("tests")
        hardware_tests.read(said, result)
        return result

    passed = (0, "...\n115 passed, 3 skipped in 1.20s")
    good = told(passed, (0, "5 passed in 3s"))
    assert (good.status, good.figures["passed"], good.figures["skipped"]) == (Status.OK, 120, 3)
    bad = told(passed, (1, "FAILED tests/a.py::b - assert 1\n1 failed, 4 passed in 2s"))
    assert (bad.status, bad.figures["passed"], bad.figures["failed"]) == (Status.FAILED, 119, 1)
    assert bad.lines[0] == "FAILED tests/a.py::b - assert 1"
    none = told((0, "SKIPPED [5] test_gpu.py:3: no CUDA device\n5 skipped in 2s"))
    assert none.status is Status.MISSING
    assert "no CUDA device" in none.lines[0]
    assert told((4, "")).status is Status.FAILED
    late = told(passed, (124, "....F"))
    assert late.status is Status.FAILED
    assert late.lines == ["the tests did not end in time; last: ....F"]


def test_shares_of_the_tests_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every share ends by itself or is killed; what it wrote until then is read."""
    seen: list[tuple[str, ...]] = []

    def command(*arguments: str) -> list[str]:
        seen.append(arguments)
        code = "import time; print('2 passed', flush=True); time.sleep(60 if LATE else 0)"
        return [sys.executable, "-c", code.replace("LATE", str("late" in arguments))]

    monkeypatch.setattr(hardware_tests, "_command", command)
    begun = time.monotonic()
    said = hardware_tests._said([["a", "b"], ["late"]], begun + 5)
    assert time.monotonic() - begun < 30
    assert [code for code, _ in said] == [0, 124]
    assert all(text.strip() == "2 passed" for _, text in said)
    assert [share[2:] for share in seen] == [("a", "b"), ("late",)]


@pytest.mark.timeout(200)
def test_the_tests_are_found_with_settings_of_their_own() -> None:
    stage = BY_NAME["tests"]
    result = runner.run_stage(stage, "cpu", True, 150, Ceilings())
    assert result.status is Status.MISSING
    assert "no test ran" in result.lines[0]
    skipped = result.figures["skipped"]
    assert isinstance(skipped, int)
    assert skipped > 100


@pytest.mark.parametrize(
    ("statuses", "wanted"),
    [
        ([Status.OK, Status.OK], Verdict.COMPLETE),
        ([Status.OK, Status.MISSING], Verdict.DEGRADED),
        ([Status.OK, Status.FAILED, Status.OK], Verdict.DEGRADED),
        ([Status.MISSING, Status.OK], Verdict.DEGRADED),
        ([Status.OK, Status.SKIPPED], Verdict.DEGRADED),
        ([Status.FAILED], Verdict.FAILED),
        ([Status.TIMEOUT, Status.OK], Verdict.FAILED),
        ([Status.MISSING, Status.FAILED], Verdict.FAILED),
        ([], Verdict.FAILED),
    ],
)
def test_the_verdict(statuses: list[Status], wanted: Verdict) -> None:
    assert verdict([StageResult(str(i), status) for i, status in enumerate(statuses)]) is wanted


def test_exit_codes() -> None:
    assert [found.exit_code for found in Verdict] == [0, 1, 2]


def spoken(code: str, seconds: float = 30.0) -> StageResult:
    return runner._spoken([sys.executable, "-c", code], dict(os.environ), seconds, "stage")


def test_a_stage_that_hangs_is_ended() -> None:
    result = spoken("import time; time.sleep(60)", 0.5)
    assert result.status is Status.TIMEOUT
    assert "no answer" in result.lines[0]


def test_a_stage_that_dies_says_how() -> None:
    assert "signal 11" in spoken("import os; os.kill(os.getpid(), 11)").lines[0]
    result = spoken("import sys; sys.exit('no driver')")
    assert result.status is Status.FAILED
    assert result.lines == ["the process ended with exit code 1: no driver"]
    assert spoken("print('not a result')").status is Status.FAILED


def test_a_stage_that_raises_or_lacks_a_package_goes_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    from ops.gpu_check import environment, stages

    def lacking(context: object, result: StageResult) -> None:
        raise ModuleNotFoundError("No module named 'numba_cuda'", name="numba_cuda")

    def raising(context: object, result: StageResult) -> None:
        result.figures["half"] = 1
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    context = SimpleNamespace(notes=[])
    monkeypatch.setattr(environment, "run", lacking)
    assert stages.run("environment", context).lines == ["numba_cuda is not installed"]
    monkeypatch.setattr(environment, "run", raising)
    result = stages.run("environment", context)
    assert (result.status, result.figures) == (Status.FAILED, {"half": 1})
    assert "illegal memory access" in result.lines[0]
    monkeypatch.setattr(
        environment, "run", lambda context, result: context.notes.extend(["not recorded", "not recorded"])
    )
    result = stages.run("environment", context)
    assert (result.status, result.lines) == (Status.MISSING, ["not recorded"])


class FakeEvent:
    """A clock that moves by a millisecond for each mark."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        FakeEvent.now += 1.0
        self.at = FakeEvent.now

    def elapsed_time(self, later: "FakeEvent") -> float:
        return later.at - self.at


@pytest.mark.parametrize("records", [True, False])
def test_device_time_is_taken_of_a_graph_where_one_can_be_made(monkeypatch: pytest.MonkeyPatch, records: bool) -> None:
    torch = pytest.importorskip("torch")
    from ops.gpu_check.context import Context

    @contextmanager
    def graph(made: object, capture_error_mode: str) -> Iterator[None]:
        if not records:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        yield

    streams: list[str] = []
    fakes = {"Event": FakeEvent, "graph": graph, "synchronize": lambda device: None}
    fakes |= {"current_stream": lambda: "own", "set_stream": streams.append}
    for name, fake in (fakes | {"CUDAGraph": lambda: SimpleNamespace(replay=lambda: None)}).items():
        monkeypatch.setattr(torch.cuda, name, fake)
    context = Context(torch.device("cuda"), False, 0.0, Ceilings())
    calls: list[int] = []
    taken = context.recorded_seconds(lambda: calls.append(1), 10)
    assert taken == pytest.approx(1e-4 if records else 1e-3)
    assert len(calls) == (3 + 10 if records else 3 + 3 + 10)
    # A capture that failed may have left its own stream as the current one.
    assert streams == ([] if records else ["own"])
    assert context.notes == (
        []
        if records
        else ["not recorded in a CUDA graph, timed with its launches: operation not permitted when stream is capturing"]
    )


def test_the_budget_and_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, float, Ceilings]] = []

    def fake(stage: Stage, device: str, small: bool, seconds: float, ceilings: Ceilings) -> StageResult:
        asked.append((stage.name, seconds, ceilings))
        figures = {"bandwidth_bytes_per_s": 4e12, "bf16_operations_per_s": 9e14} if stage.name == "rates" else {}
        return StageResult(stage.name, figures=dict(figures))

    monkeypatch.setattr(runner, "run_stage", fake)
    said: list[str] = []
    report = runner.check("cuda:0", small=False, budget_s=480, say=said.append)
    assert [name for name, _, _ in asked] == [stage.name for stage in STAGES]
    assert all(seconds <= BY_NAME[name].most for name, seconds, _ in asked)
    assert asked[-1][2] == Ceilings(4e12, 9e14)
    assert report.verdict is Verdict.COMPLETE
    asked.clear()
    report = runner.check("cuda:0", small=False, budget_s=45, say=said.append)
    assert [stage.name for stage in report.stages if stage.status is Status.SKIPPED] == ["model-27B"]
    assert sum(stage.least for stage in STAGES) < 480


def test_without_a_device_it_fails_at_once_and_says_so(tmp_path: Path) -> None:
    """The command itself, for a GPU that is not there."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    file = tmp_path / "report.json"
    command = [sys.executable, "-m", "ops.gpu_check", "--json", str(file), "--budget-s", "100"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == Verdict.FAILED.exit_code, done.stderr
    report = msgspec.json.decode(file.read_bytes(), type=Report)
    assert report == msgspec.convert(json.loads(done.stdout), Report)
    assert [stage.name for stage in report.stages] == ["environment"]
    assert any(line.startswith("no CUDA device: ") for line in report.stages[0].lines)


def test_a_cpu_at_full_size_is_refused() -> None:
    command = [sys.executable, "-m", "ops.gpu_check", "--device", "cpu"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--small" in done.stderr
