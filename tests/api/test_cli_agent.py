"""`neuron bench agent`: the conversation it sends, and what it makes of the answers."""

import itertools
import json
from typing import Any

from click.testing import CliRunner

from neuron.api.cli import cli
from neuron.api.cli.agent_talk import TOOLS, alone, code, conversation
from neuron.api.cli.bench_agent import Turn, measure, summary
from tests.harness.daemon import DaemonProcess, say


def test_each_turn_begins_with_all_of_the_one_before() -> None:
    sent = conversation(5, 6, "x")
    assert [len(messages) for messages in sent] == [2, 4, 6, 8, 10]
    for earlier, later in itertools.pairwise(sent):
        assert later[: len(earlier)] == earlier
    assert json.loads(sent[-1][2]["tool_calls"][0]["function"]["arguments"])
    assert sent == conversation(5, 6, "x")
    assert conversation(1, 6, "y")[0][0]["content"][:14] != sent[0][0]["content"][:14]
    assert len({tool["function"]["name"] for tool in TOOLS}) == len(TOOLS)


def test_text_is_as_long_as_it_was_asked_to_be() -> None:
    assert len(code(40, "a").splitlines()) == 40
    assert code(40, "a") != code(40, "b")
    assert alone(3, "a")[0]["content"].startswith("a\n")


class Server:
    """Takes a millisecond for each token it computes and keeps the longest prompt that begins the same."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, messages: list[dict[str, Any]]) -> Turn:
        text = json.dumps(messages)[:-1]
        reused = max((len(one) for one in self.asked if text.startswith(one)), default=0)
        self.asked.append(text)
        return Turn(len(text), reused, float(len(text) - reused))


def test_figures_of_a_server_that_reuses_all() -> None:
    server, seen = Server(), list[int]()
    found = measure(server.ask, 4, 4000, cold=True, peer=None, say=lambda turn: seen.append(turn.turn))
    report = summary(found)
    assert seen == [1, 2, 3, 4]
    assert report["reuse_of_known"] == 1.0
    assert report["warm_over_alone"] == 1.0
    assert report["cold_over_warm"] > 2


def test_against_a_daemon_and_a_peer() -> None:
    with DaemonProcess({"m": say("yes")}, models=["m"]) as daemon:
        arguments = ["bench", "agent", "--url", daemon.url, "--turns", "4", "--tokens", "3000", "--json"]
        result = CliRunner().invoke(cli, [*arguments, "--peer-url", daemon.url, "--peer-model", "test/m"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["reuse_of_known"] > 0.98
    assert [turn["turn"] for turn in report["each"]] == [1, 2, 3, 4]
    assert report["each"][-1]["cold"]["reused"] == 0
    assert report["each"][-1]["peer"]["reused"] >= report["each"][-1]["warm"]["reused"]
