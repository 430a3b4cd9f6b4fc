"""`neuron bench speed` and `load` against a daemon with scripted models: what they ask, count and draw."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from neuron.api.cli import cli, main
from neuron.api.cli.bench_ask import Asked
from neuron.api.cli.bench_load import report
from neuron.api.cli.percentiles import percentile
from tests.harness.daemon import DaemonProcess, say

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    scripts = {
        "m": say("one ", "two ", "three ", repeat=True),
        "gone": say("x", fault={"at": 1, "phase": "decode", "kind": "nan", "times": 1000}),
    }
    with DaemonProcess(scripts, models=["m", "gone"]) as daemon:
        yield daemon


def bench(daemon: DaemonProcess, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["bench", *arguments, "--url", daemon.url], catch_exceptions=False)


def test_speed_is_a_row_for_each_length(daemon: DaemonProcess, tmp_path: Path) -> None:
    drawn = tmp_path / "speed.png"
    arguments = ["test/m", "--prompt", "300", "--prompt", "900", "--tokens", "5", "--runs", "2"]
    found = json.loads(bench(daemon, *arguments, "--json", "--plot", str(drawn)).output)
    assert found["model"] == "test/m"
    assert [row["decode_tokens"] for row in found["rows"]] == [5, 5]
    for row, wanted in zip(found["rows"], (300, 900), strict=True):
        assert abs(row["prompt_tokens"] - wanted) < 0.2 * wanted
        assert row["prefill_tok_s"] > 0
        assert row["first_token_ms"] > 0
    assert drawn.read_bytes().startswith(PNG)
    table = bench(daemon, *arguments).output.splitlines()
    assert table[0] == "test/m: medians of 2"
    assert len(table) == 4


def test_an_answer_of_one_token_has_no_decode_speed(daemon: DaemonProcess, tmp_path: Path) -> None:
    arguments = ["test/m", "--prompt", "300", "--tokens", "1", "--runs", "1"]
    drawn = tmp_path / "speed.png"
    (row,) = json.loads(bench(daemon, *arguments, "--json", "--plot", str(drawn)).output)["rows"]
    assert (row["decode_tokens"], row["decode_tok_s"]) == (1, None)
    assert drawn.read_bytes().startswith(PNG)
    assert bench(daemon, *arguments).output.splitlines()[-1].split()[-2:] == ["1", "-"]


def test_lengths_end_at_the_context(daemon: DaemonProcess) -> None:
    arguments = ["test/m", "--prompt", "5000", "--prompt", "9000", "--tokens", "4", "--runs", "1", "--json"]
    rows = json.loads(bench(daemon, *arguments).output)["rows"]
    assert len(rows) == 1
    assert 3000 < rows[0]["prompt_tokens"] <= 4092


def test_no_run_profits_from_another(daemon: DaemonProcess) -> None:
    before = len(daemon.log_lines("prefix cache: hit"))
    bench(daemon, "test/m", "--prompt", "700", "--runs", "2")
    assert len(daemon.log_lines("prefix cache: hit")) == before


def test_load_counts_every_request_once(daemon: DaemonProcess, tmp_path: Path) -> None:
    drawn = tmp_path / "load.png"
    arguments = ["load", "test/m", "--clients", "5", "--requests", "13", "--prompt", "60:120", "--tokens", "3:9"]
    found = json.loads(bench(daemon, *arguments, "--json", "--plot", str(drawn)).output)
    assert (found["requests"], found["clients"], found["errors"]) == (13, 5, {})
    for key in ("first_token_ms", "inter_token_ms", "total_ms", "queue_ms"):
        assert 0 <= found[key]["p50"] <= found[key]["p90"] <= found[key]["p99"]
    assert drawn.read_bytes().startswith(PNG)
    output = bench(daemon, *arguments).output
    assert "13 requests of 5 clients" in output
    assert "errors: none" in output


def test_load_goes_on_past_errors_and_says_so(daemon: DaemonProcess) -> None:
    # The probes that find a word's length take one token each, which the script gives before its fault.
    result = bench(daemon, "load", "test/gone", "--clients", "2", "--requests", "4", "--tokens", "8")
    assert "errors: 4 nan_logits" in result.output
    assert result.exit_code == 1


def test_figures_of_known_answers() -> None:
    answers = [Asked(first / 1e3, (0.001, 0.003), 0.1, 10, 3, {"queue_ms": 2.0}) for first in range(1, 101)]
    answers.append(Asked(None, (), 0.0, 0, 0, {}, "rate_limit_exceeded"))
    found = report(answers, 4, 10.0)
    assert found["first_token_ms"] == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert found["inter_token_ms"]["p50"] == 1.0
    assert found["errors"] == {"rate_limit_exceeded": 1}
    assert (found["requests_per_s"], found["answer_tok_s"]) == (10.0, 30.0)
    assert report([], 1, 1.0)["total_ms"]["p50"] is None
    assert percentile([5.0], 0.0) == percentile([5.0], 1.0) == 5.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plot", "x.pdf"], "--plot writes PNG files"),
        (["--plot", "none/such/x.png"], "there is no folder"),
        (["load", "--prompt", "9:3"], "'9:3' is no length"),
        (["load", "--tokens", "many"], "'many' is no length"),
    ],
)
def test_bad_options_are_told_before_anything_is_measured(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", *arguments, "--url", "http://127.0.0.1:9"])
    assert said in capsys.readouterr().err


def test_a_plot_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        main(["bench", "--plot", "x.png", "--url", "http://127.0.0.1:9"])
    assert capsys.readouterr().err.splitlines() == ["Error: --plot needs matplotlib: pip install 'neuron[plot]'."]
    assert "matplotlib.pyplot" not in sys.modules
