"""Rows 10-22 of the fault matrix over HTTP: faults that are raised, and a link that lies.

The tables behind them (every code, every text, every phase) are walked at the job loop in tests/actors/device.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuron.actors.device.worker.fault_table import CODE_RULES, Verdict
from tests.harness.clients import TARGET, Stream, content
from tests.harness.rows import Rows, fault, rows, turn, until

TURNS = [
    turn("n", "o", when="nan", fault=fault("nan", "decode", 1, times=1000)),
    turn("t", when="slow", repeat=True, delay_ms=20),
]
POINTS = {"prefill": "worker.prefill.chunk", "decode": "worker.decode.step", "clear": "worker.clear_kv"}
#: A sticky and a fatal one here; all eighteen in each phase at the job loop.
CODES = [rule for rule in CODE_RULES if rule.code in (700, 214)]


@pytest.fixture(name="held", scope="module")
def _held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    # The first fault of a process imports the device library, for the exceptions are the real ones: room for that.
    with rows(tmp_path_factory.mktemp("rows"), TURNS, limits="step_seconds = 30.0") as held:
        yield held


def raising(point: str, error: str, code: int = 0, text: str = "") -> dict[str, Any]:
    return {"point": point, "action": "raise", "error": error, "code": code, "text": text}


@pytest.mark.parametrize("phase", POINTS)
@pytest.mark.parametrize("rule", CODES, ids=lambda rule: rule.name)
def test_row_10_sticky_and_fatal_codes(held: Rows, rule: Any, phase: str) -> None:
    assert rule.verdict is Verdict.FATAL
    with held.row(neighbour=phase == "decode"):
        pid = held.pid
        held.arm(raising(POINTS[phase], "accelerator", rule.code, f"CUDA error: {rule.text}"))
        refused = held.ask()
        assert (refused.status_code, refused.json()["error"]["code"]) in ((503, "device_fault"), (500, "device_fault"))
        again = held.ask()
        assert (again.status_code, again.json()["error"]["code"]) == (503, "model_poisoned")
        assert again.headers["x-should-retry"] == "false"
        held.daemon.wait_state(TARGET, "poisoned")
        until(lambda: rule.name in held.reason)
        held.resident()
        assert held.pid != pid


def test_row_11_out_of_memory_costs_one_request(held: Rows) -> None:
    with held.row():
        pid = held.pid
        held.arm(raising(POINTS["prefill"], "oom"))
        refused = held.ask("a longer prompt")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "insufficient_vram")
        assert refused.headers["retry-after"] == "5"
        assert held.state() == "ready"
        assert content(held.ask()) == "abc"
        assert held.pid == pid
        assert held.daemon.wait_for_log("model NOT marked poisoned", error_code="insufficient_vram")


def test_row_12_out_of_memory_and_a_failing_probe(held: Rows) -> None:
    with held.row():
        held.arm(raising(POINTS["prefill"], "oom"), raising("worker.probe", "runtime", text="zz"))
        assert held.code() == "device_fault"
        held.daemon.wait_state(TARGET, "poisoned")
        until(lambda: held.reason.startswith("probe_failed"))


def test_row_13_out_of_memory_in_a_load(held: Rows) -> None:
    with held.row():
        held.daemon.unload(TARGET)
        held.arm(raising("worker.load.end", "oom"))
        response = held.daemon.load(TARGET, devices=["cpu"])
        assert (response.status_code, response.json()["error"]["code"]) == (503, "insufficient_vram")
        assert held.state() == "failed"


@pytest.mark.parametrize("probe", ["good", "bad"])
@pytest.mark.parametrize("text", ["CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_NOT_INITIALIZED"])
def test_row_14_ambiguous_texts_are_decided_by_the_probe(held: Rows, text: str, probe: str) -> None:
    with held.row(neighbour=False):
        entries = [raising(POINTS["decode"], "runtime", text=f"CUDA error: {text} when calling `x`")]
        if probe == "bad":
            entries.append(raising("worker.probe", "runtime", text="zz"))
        held.arm(*entries)
        assert held.code("a") == ("internal_error" if probe == "good" else "device_fault")
        assert held.state() == ("ready" if probe == "good" else "poisoned")


def test_row_15_the_code_wins_over_the_text(held: Rows) -> None:
    with held.row(neighbour=False):
        held.arm(raising(POINTS["decode"], "cuda_api", 700, "UNKNOWN_CUDA_ERROR"))
        assert held.code() == "device_fault"
        held.daemon.wait_state(TARGET, "poisoned")
        until(lambda: held.reason.startswith("illegal_address"))


def test_row_16_an_unknown_text_is_fatal(held: Rows) -> None:
    with held.row(neighbour=False):
        held.arm(raising(POINTS["decode"], "runtime", text="zz"))
        assert held.code() == "device_fault"
        held.daemon.wait_state(TARGET, "poisoned")
        until(lambda: held.reason.startswith("unclassified"))


@pytest.mark.parametrize("streamed", [True, False])
def test_row_17_unhealthy_logits_cost_one_request(held: Rows, streamed: bool) -> None:
    with held.row():
        seen = unhealthy(held)
        if streamed:
            with Stream(held.daemon, "nan") as stream:
                assert stream.read().errors == ["nan_logits"]
                assert not stream.done
        else:
            refused = held.ask("nan")
            assert (refused.status_code, refused.json()["error"]["code"]) == (500, "nan_logits")
        assert held.state() == "ready"
        assert content(held.ask()) == "abc"
        assert held.daemon.log_lines("model NOT marked poisoned", error_code="nan_logits")
        assert unhealthy(held) == seen + 1


def unhealthy(held: Rows) -> int:
    """The counter of /metrics for the target."""
    with held.daemon.client() as client:
        lines = client.get("/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("neuron_unhealthy_logits_total") and TARGET in line]
    return sum(int(float(line.rpartition(" ")[2])) for line in counts)


@pytest.mark.parametrize("action", ["corrupt_stamp", "wrong_job", "garbage"])
def test_row_21_a_link_that_lies(held: Rows, action: str) -> None:
    with held.row():
        pid = held.pid
        # The second answer of a request is its prefill's, the first that carries a stamp.
        held.arm({"point": "worker.reply", "action": action, "start": 2, "count": 3})
        refused = held.ask()
        assert (refused.status_code, refused.json()["error"]["code"]) == (500, "protocol_error")
        held.daemon.wait_state(TARGET, "poisoned")
        held.resident()
        assert held.pid != pid


def test_row_21_doubled_answers_are_dropped(held: Rows) -> None:
    with held.row():
        held.arm({"point": "worker.reply", "action": "duplicate_reply", "count": 1000})
        assert [content(held.ask()) for _ in range(3)] == ["abc"] * 3
        assert held.state() == "ready"


def test_conc_01_after_every_fault_the_answers_are_the_same(held: Rows) -> None:
    """Recoverable faults in turn, each followed by an answer that equals the one before all of them."""
    with held.row():
        before = [content(held.ask(text)) for text in ("one", "two", "three")]
        for entry in (
            raising(POINTS["decode"], "oom"),
            raising(POINTS["prefill"], "value", text="shapes cannot be multiplied"),
            {"point": POINTS["decode"], "action": "nan"},
        ):
            held.arm(entry)
            assert held.code() != "ok"
            held.arm()
            assert [content(held.ask(text)) for text in ("one", "two", "three")] == before


def test_a_fault_leaves_the_files_of_the_tree_alone(held: Rows, tmp_path: Path) -> None:
    """Nothing is written below the daemon's home by faults: no dumps, no logs."""
    with held.row(neighbour=False):
        before = sorted(path.name for path in held.daemon.directory.rglob("*"))
        held.arm(raising(POINTS["decode"], "accelerator", 700))
        assert held.code() == "device_fault"
        assert sorted(path.name for path in held.daemon.directory.rglob("*")) == before
