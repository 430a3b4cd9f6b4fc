"""Stop strings: exact cut over tokens, nothing else withheld (CHAT-06, CHAT-08, CHAT-13)."""

import pytest

from neuron.actors.events import TextDelta, TokenLogprob
from neuron.actors.text.parser_stops import StopFilter
from tests.actors.parser.harness import BARE, CLOSE, OPEN, PLAIN, Model, parser, run, run_all

FOX = ["The quick br", "own", " fo", "x jumps"]


@pytest.mark.parametrize("stop", [["own fox"], ["zzz", "own fox"]])
def test_spans_tokens_and_is_removed(stop: list[str]) -> None:
    out = run_all(FOX, stop=stop)
    assert out.content == "The quick br"
    assert out.stop == "own fox"


def test_a_stop_that_never_completes_loses_nothing() -> None:
    out = run_all(FOX, stop=["fox!"])
    assert out.content == "The quick brown fox jumps"
    assert out.stop is None


def test_only_a_proper_prefix_is_withheld() -> None:
    machine = parser(stop=["fox!"], tools=())
    shown = [[d.text for d in machine.feed(PLAIN, piece) if isinstance(d, TextDelta)] for piece in FOX]
    assert shown == [["The quick br"], ["own"], [" "], ["fox jumps"]]


def test_lone_prefix_is_released_at_the_end() -> None:
    assert run_all(["hello <"], stop=["<|x|>"]).content == "hello <"


def test_markers_are_seen_while_a_stop_waits() -> None:
    out = run_all([OPEN, "plan", CLOSE, "ok"], stop=["ZZZZZZZZ"])
    assert (out.reasoning, out.content) == ("plan", "ok")


def test_the_first_complete_stop_wins_and_of_two_the_longer() -> None:
    assert run_all("abcd", stop=["abcd", "bc"]).content == "a"
    assert run_all("abcd", stop=["bcd", "cd"]).stop == "bcd"


def test_self_overlapping_stop() -> None:
    assert run_all("aaab", stop=["aab"]).content == "a"
    assert run_all("abababc", stop=["ababc"]).content == "ab"


@pytest.mark.parametrize(("stop", "content"), [("é", "caf"), ("é n", "caf"), ("\U0001f98a", "café noir ")])
def test_multi_byte_stops(stop: str, content: str) -> None:
    out = run_all("café noir \U0001f98a.", stop=[stop])
    assert out.content == content
    assert "\ufffd" not in out.content


def test_not_applied_to_reasoning_nor_to_calls() -> None:
    call = '<tool_call>\n{"name":"say","arguments":{"t":"END"}}\n</tool_call>'
    out = run_all(["one END two</think>", "three"], Model(None, None), opens=True, stop=["END"])
    assert (out.reasoning, out.content, out.stop) == ("one END two", "three", None)
    assert run_all(call, BARE, stop=["END"]).calls == [("say", '{"t": "END"}')]


def test_applied_to_a_block_that_turned_out_as_text() -> None:
    out = run_all("a <tool_call> END b", BARE, stop=["END"])
    assert out.content == "a <tool_call> "


def test_does_not_reach_across_a_call() -> None:
    call = '<tool_call>{"name":"say"}</tool_call>'
    assert run_all("ab" + call + "cd", BARE, stop=["bc"]).content == "abcd"


def test_nothing_after_a_stop() -> None:
    machine = parser(stop=["x"])
    machine.feed(PLAIN, "ax")
    assert machine.stopped
    assert machine.feed(PLAIN, "b") == []
    assert machine.finish(truncated=True) == []


def test_log_probabilities_ride_on_the_text() -> None:
    machine = parser(stop=["own fox"], tools=())
    entries = [TokenLogprob(piece, -0.5, piece.encode()) for piece in FOX]
    shown = [d for piece, entry in zip(FOX, entries, strict=True) for d in machine.feed(PLAIN, piece, entry)]
    assert [d.logprobs for d in shown if isinstance(d, TextDelta)] == [(entries[0],)]


def test_filter_steps_are_linear_for_a_hostile_pair() -> None:
    stop = "a" * 255 + "b"
    filter_ = StopFilter.of((stop,))
    shown = sum(len(filter_.push("a")) for _ in range(20_000)) + len(filter_.release())
    assert shown == 20_000


def test_run_stops_where_generation_would() -> None:
    assert run(["a", "b", "never fed"], stop=["b"]).content == "a"
