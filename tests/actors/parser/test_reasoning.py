"""Reasoning: by id where the tokenizer has one, by a rule on text where not (REAS-01 to REAS-05)."""

from neuron.actors.events import ReasoningClosed, ReasoningOpened
from neuron.actors.request import ToolChoice
from tests.actors.parser.harness import BARE, CALL, CLOSE, END_CALL, IDS, OPEN, PLAIN, Mark, parser, run_all

RM = [CALL, '\n{"name":"say","arguments":{}}\n', END_CALL]


def test_prompt_opened_and_cut() -> None:
    out = run_all("step one step two", opens=True, truncated=True)
    assert (out.content, out.reasoning, out.marks) == ("", "step one step two", ["<think>"])


def test_prompt_opened_and_closed() -> None:
    out = run_all(["step", CLOSE, "answer"], opens=True)
    assert (out.content, out.reasoning, out.marks) == ("answer", "step", ["<think>", "</think>"])


def test_a_closed_block_in_the_prompt_hides_nothing() -> None:
    assert run_all("42").content == "42"


def test_opened_by_the_model() -> None:
    out = run_all([OPEN, "\nplan\n", CLOSE, "\n\nok\n"])
    assert (out.reasoning, out.content) == ("plan", "ok\n")


def test_inner_newlines_are_kept() -> None:
    out = run_all([OPEN, "\n\na\n\nb\n\n", CLOSE, "\n c"])
    assert (out.reasoning, out.content) == ("a\n\nb", " c")


def test_marker_spelled_by_ordinary_tokens_is_text() -> None:
    assert run_all(["```", "<", "th", "ink", ">", "```\nok"]).content == "```<think>```\nok"
    out = run_all([OPEN, "a </think> b", CLOSE, "c"])
    assert (out.reasoning, out.content) == ("a </think> b", "c")


def test_a_second_block_is_hidden_too() -> None:
    out = run_all([OPEN, "a", CLOSE, "b", OPEN, "c", CLOSE, "d"])
    assert (out.reasoning, out.content) == ("ac", "bd")


def test_slips_with_markers_are_dropped() -> None:
    out = run_all([OPEN, "plan", OPEN, " more", CLOSE, "x", CLOSE, "y"], opens=True)
    assert (out.reasoning, out.content, out.marks) == ("plan more", "xy", ["<think>", "</think>"])


def test_text_rule_without_ids() -> None:
    out = run_all("<think>\nplan\n</think>\n\nok <think> kept", BARE)
    assert (out.reasoning, out.content) == ("plan", "ok <think> kept")
    assert run_all("see <think>x</think>", BARE).content == "see <think>x</think>"
    assert run_all("  <thin", BARE).content == "  <thin"
    assert run_all(" " * 200 + "<think>", BARE).content == " " * 200 + "<think>"
    assert run_all("a</thi", BARE, opens=True).reasoning == "a</thi"


def test_tokens_are_counted_with_their_markers() -> None:
    machine = parser()
    for piece in (OPEN, "a", "b", CLOSE, "c", "d"):
        machine.feed(IDS.get(piece, PLAIN) if isinstance(piece, Mark) else PLAIN, piece)
    assert machine.reasoning_tokens == 4
    machine.feed(-1, "tail")
    assert machine.reasoning_tokens == 4


def test_events_in_order_when_the_prompt_opened() -> None:
    machine = parser(opens=True)
    first = machine.feed(PLAIN, "a")
    assert first[0] == ReasoningOpened("<think>")
    assert machine.feed(IDS["</think>"], "") == [ReasoningClosed("</think>")]


def test_nothing_generated_still_opens() -> None:
    assert run_all([], opens=True).marks == ["<think>"]


def test_a_call_thought_about_is_not_executed() -> None:
    out = run_all([OPEN, "maybe ", *RM, CLOSE, "No need."])
    assert (out.calls, out.content) == ([], "No need.")
    assert "<tool_call>" in out.reasoning
    out = run_all([OPEN, "\n", *RM, "\n", CLOSE, "No need."])
    assert (out.calls, out.content) == ([], "No need.")
    assert run_all([OPEN, "maybe ", *RM]).calls == []
    assert run_all([OPEN, "maybe\n", *RM, "and then"]).calls == []


def test_a_forgotten_close_marker_before_the_last_call() -> None:
    out = run_all(["plan\n\n", *RM], opens=True)
    assert (out.reasoning, out.content, out.calls) == ("plan", "", [("say", "{}")])
    assert out.marks == ["<think>", "</think>"]
    out = run_all([OPEN, "plan\n", *RM, "\n", *RM, "\n"])
    assert out.calls == [("say", "{}")] * 2


def test_no_such_mercy_for_a_cut_answer_or_other_tools() -> None:
    out = run_all(["plan\n", *RM], opens=True, truncated=True)
    assert (out.calls, out.content) == ([], "")
    assert out.reasoning.endswith("</tool_call>")
    unknown = [CALL, '\n{"name":"frob","arguments":{}}\n', END_CALL]
    assert run_all(["plan\n", *unknown], opens=True).calls == []
    assert run_all(["plan\n", *RM], opens=True, choice=ToolChoice.NONE).calls == []


def test_a_broken_call_in_reasoning_swallows_no_answer() -> None:
    out = run_all([OPEN, "\n", CALL, '{"name": "say', CLOSE, "answer"])
    assert (out.content, out.calls) == ("answer", [])


def test_a_think_marker_inside_an_argument_is_text() -> None:
    out = run_all([CALL, '{"name":"say","arguments":{"t":"', OPEN, '"}}', END_CALL])
    assert out.calls == [("say", '{"t": "<think>"}')]
