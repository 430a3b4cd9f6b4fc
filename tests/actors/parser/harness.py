"""Runs the output parser over pieces of text and marker ids, and folds what it emits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuron.actors.events import (
    Delta,
    ReasoningClosed,
    ReasoningDelta,
    ReasoningOpened,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from neuron.actors.request import InferenceRequest, Tool, ToolChoice
from neuron.actors.text.parser import StreamParser, build_parser
from neuron.actors.text.types import Markers

THINK = Markers(1, 2, "<think>", "</think>")
TOOL = Markers(3, 4, "<tool_call>", "</tool_call>")
IDS = {"<think>": 1, "</think>": 2, "<tool_call>": 3, "</tool_call>": 4}
PLAIN = 100


class Mark(str):
    """A marker that arrives as its own id."""

    __slots__ = ()


OPEN, CLOSE = Mark("<think>"), Mark("</think>")
CALL, END_CALL = Mark("<tool_call>"), Mark("</tool_call>")


@dataclass
class Model:
    reasoning: Markers | None = THINK
    tool_call: Markers | None = TOOL


BARE = Model(None, None)


def tool(name: str, **properties: Any) -> Tool:
    return Tool(name, "", {"type": "object", "properties": properties}, {})


TOOLS = (
    tool("glob", pattern={"type": "string"}),
    tool("edit", old={"type": "string"}, n={"type": "integer"}, content={"type": "string"}),
    tool("say", t={"type": "string"}),
)


def request(**fields: Any) -> InferenceRequest:
    return InferenceRequest(req_id="r", model="m", messages=(), principal="p", **fields)


@dataclass
class Folded:
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    stop: str | None = None
    stopped: bool = False
    deltas: list[Delta] = field(default_factory=list)

    def same(self, other: "Folded") -> bool:
        return (self.content, self.reasoning, self.calls, self.marks, self.stop, self.stopped) == (
            other.content,
            other.reasoning,
            other.calls,
            other.marks,
            other.stop,
            other.stopped,
        )


def fold(deltas: Iterable[Delta]) -> Folded:
    """Also checks the rules on calls: name once and first, fragments join to the arguments, calls one by one."""
    out = Folded(deltas=list(deltas))
    content: list[str] = []
    reasoning: list[str] = []
    fragments: list[str] = []
    name = ""
    for delta in out.deltas:
        match delta:
            case TextDelta():
                assert delta.text
                content.append(delta.text)
            case ReasoningDelta():
                assert delta.text
                reasoning.append(delta.text)
            case ReasoningOpened() | ReasoningClosed():
                out.marks.append(delta.marker)
            case ToolCallStart():
                assert not name
                assert delta.index == len(out.calls)
                assert delta.call_id
                name, fragments = delta.name, []
            case ToolCallArguments():
                assert name
                assert delta.index == len(out.calls)
                fragments.append(delta.fragment)
            case ToolCallEnd():
                assert "".join(fragments) == delta.arguments
                out.calls.append((name, delta.arguments))
                name = ""
    assert not name
    out.content, out.reasoning = "".join(content), "".join(reasoning)
    return out


def parser(
    model: Model = Model(),  # noqa: B008
    *,
    opens: bool = False,
    tools: Sequence[Tool] = TOOLS,
    stop: Sequence[str] = (),
    choice: ToolChoice = ToolChoice.AUTO,
    parallel: bool = True,
) -> StreamParser:
    built = build_parser(
        model,
        opens_reasoning=opens,
        request=request(tools=tuple(tools), stop=tuple(stop), tool_choice=choice, parallel_tool_calls=parallel),
    )
    assert isinstance(built, StreamParser)
    return built


def run(pieces: str | Sequence[str], model: Model = Model(), *, truncated: bool = False, **options: Any) -> Folded:  # noqa: B008
    """Feed pieces (a Mark goes in as its id), finish, fold."""
    machine = parser(model, **options)
    deltas: list[Delta] = []
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        deltas += machine.feed(IDS[piece] if isinstance(piece, Mark) else PLAIN, str(piece))
        if machine.stopped:
            break
    deltas += machine.finish(truncated=truncated)
    out = fold(deltas)
    out.stop, out.stopped = machine.stop_sequence, machine.stopped
    assert machine.tool_calls == len(out.calls)
    return out


def cut(pieces: str | Sequence[str], size: int) -> list[str]:
    """The same text in pieces of `size` characters; marks stay whole."""
    out: list[str] = []
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        if isinstance(piece, Mark):
            out.append(piece)
        else:
            out.extend(piece[start : start + size] for start in range(0, len(piece), size))
    return out


def run_all(pieces: str | Sequence[str], model: Model = Model(), **options: Any) -> Folded:  # noqa: B008
    """As `run`, after checking that every cut gives the same."""
    whole = run(pieces, model, **options)
    for size in (1, 2, 3, 5, 8):
        assert run(cut(pieces, size), model, **options).same(whole), size
    return whole
