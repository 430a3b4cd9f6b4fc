"""The output parser: stop strings, reasoning and tool calls over token ids and text, one state machine for every model.

Rules that are decisions (each has a test):
- With a single-id marker only that id switches reasoning; without one, `<think>` at the very start of the answer does.
- Newlines right after a reasoning marker (and before a close marker) are the marker's, not the text's.
- Stop strings apply to content only: not to reasoning, not inside a tool call.
- A tool call is held until it is whole, then its name and argument fragments leave at once: a call that the token
  limit cuts, or that does not parse, is content verbatim, and what was sent cannot be recalled.
- A call inside reasoning is not executed, except where it begins a line, names a declared tool and ends the answer:
  that is a model which forgot its close marker.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from neuron.actors.events import Delta, ReasoningClosed, ReasoningOpened, TokenLogprob
from neuron.actors.request import InferenceRequest, ToolChoice
from neuron.actors.text.parser_calls import CallDelivery, new_call_id
from neuron.actors.text.parser_channels import MAX_NEWLINES, ContentChannel, ReasoningChannel
from neuron.actors.text.parser_output import DeltaSink
from neuron.actors.text.parser_stops import StopFilter
from neuron.actors.text.parser_tags import TagFinder
from neuron.actors.text.parser_trailing import TrailingCalls
from neuron.actors.text.tool_calls import CALL_CLOSE, CALL_OPEN, CallBlock, CallGrammar
from neuron.actors.text.types import Markers, OutputParser

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
#: Long texts are worked off in pieces, so that cutting off a rest stays cheap.
WINDOW = 4096
#: How often one answer's unfinished block is searched again for calls behind it.
RESCANS = 8


class HasMarkers(Protocol):
    """What the parser needs of a loaded text model."""

    @property
    def reasoning(self) -> Markers | None: ...

    @property
    def tool_call(self) -> Markers | None: ...


class _State(Enum):
    START = auto()  # text rule only: may still become reasoning
    CONTENT = auto()
    REASONING = auto()
    BLOCK = auto()  # inside a possible tool call
    CANDIDATE = auto()  # inside a possible tool call inside reasoning
    TRAILING = auto()  # whole calls inside reasoning, only blank text since


def build_parser(
    model: HasMarkers,
    *,
    opens_reasoning: bool,
    request: InferenceRequest,
    call_id: Callable[[], str] = new_call_id,
) -> OutputParser:
    """A fresh parser for one answer. `opens_reasoning`: the rendered prompt ends inside an open think block."""
    grammar = CallGrammar.of(request.tools) if request.tools and request.tool_choice is not ToolChoice.NONE else None
    return StreamParser(
        reasoning=model.reasoning,
        tool_call=model.tool_call,
        grammar=grammar,
        stops=request.stop,
        opens_reasoning=opens_reasoning,
        one_call=not request.parallel_tool_calls,
        call_id=call_id,
    )


class StreamParser:
    """See the module. Text left in a detokeniser at the end may be fed with any id that is no marker (-1)."""

    def __init__(
        self,
        *,
        reasoning: Markers | None,
        tool_call: Markers | None,
        grammar: CallGrammar | None,
        stops: tuple[str, ...] = (),
        opens_reasoning: bool = False,
        one_call: bool = False,
        call_id: Callable[[], str] = new_call_id,
    ) -> None:
        self.stopped = False
        self.stop_sequence: str | None = None
        self.reasoning_tokens = 0
        self._reasoning = reasoning
        self._tool_call = tool_call
        pairs = [markers for markers in (reasoning, tool_call) if markers is not None]
        self._marks = {pair.open_id: pair.open_text for pair in pairs} | {
            pair.close_id: pair.close_text for pair in pairs
        }
        self._grammar = grammar
        self._sink = DeltaSink()
        self._content = ContentChannel(self._sink, StopFilter.of(stops))
        self._calls = CallDelivery(self._sink, self._content, one_call=one_call, call_id=call_id)
        self._thought = ReasoningChannel(self._sink)
        self._call_tags = (CALL_OPEN, CALL_CLOSE)
        if tool_call is not None:
            self._call_tags = (tool_call.open_text, tool_call.close_text)
        names = grammar.names if grammar is not None else ()
        tags = (self._call_tags[0], *(f"<function={name}>" for name in names)) if grammar is not None else ()
        self._tags = TagFinder(tags)
        self._think_close = TagFinder((THINK_CLOSE,) if reasoning is None else ())
        self._rescans = RESCANS
        self._block: CallBlock | None = None
        self._block_logprobs = 0
        self._trailing = TrailingCalls()
        self._start = ""  # withheld while reasoning may still open
        self._announce = opens_reasoning
        self._state = _State.CONTENT if reasoning is not None else _State.START
        if opens_reasoning:
            self._state = _State.REASONING

    @property
    def tool_calls(self) -> int:
        """Calls delivered so far."""
        return self._calls.count

    # -- the two entries

    def feed(self, token_id: int, text: str, logprob: TokenLogprob | None = None) -> list[Delta]:
        if self.stopped:
            return []
        self._open_announced()
        was_reasoning = self._in_reasoning()
        mark = self._marks.get(token_id)
        if mark is None:
            self._sink.note(logprob)
            self._push(text)
        else:
            self._push(text.removesuffix(mark) if text.endswith(mark) else text)
            if not self.stopped:
                if mark in self._call_tags:
                    self._sink.note(logprob)
                self._push_mark(mark)
        if token_id >= 0 and (was_reasoning or self._in_reasoning()):
            self.reasoning_tokens += 1
        return self._sink.take()

    def finish(self, *, truncated: bool) -> list[Delta]:
        if self.stopped:
            return self._sink.take()
        self._open_announced()
        while True:
            if self._state is _State.START:
                self._say(self._end_start())
            if self._state in (_State.BLOCK, _State.CANDIDATE):
                self._finish_block(truncated=truncated)
                if self._state is _State.BLOCK:
                    continue
            break
        if self._state is _State.TRAILING:
            if truncated:
                self._revert_trailing()
            else:
                self._deliver_trailing()
        if self._state is _State.REASONING:
            self._thought.push(self._think_close.release())
            self._thought.end()
        elif not self.stopped:
            self._say(self._tags.release())
            self._content.pause()
        return self._sink.take()

    # -- dispatch

    def _push(self, text: str) -> None:
        for start in range(0, len(text), WINDOW):
            rest = text[start : start + WINDOW]
            while rest and not self.stopped:
                rest = self._step(rest)

    def _step(self, text: str) -> str:
        """Work off some of `text` in the present state; what is left belongs to the next state."""
        match self._state:
            case _State.START:
                return self._start_text(text)
            case _State.CONTENT:
                return self._content_text(text)
            case _State.REASONING:
                return self._reasoning_text(text)
            case _State.BLOCK | _State.CANDIDATE:
                return self._block_text(text)
            case _State.TRAILING:
                return self._trailing_text(text)

    def _push_mark(self, mark: str) -> None:
        """A marker arrived as its own id; `mark` is its text."""
        if self._state is _State.START:
            self._say(self._end_start())
        reasoning = self._reasoning
        if self._state is _State.CANDIDATE and reasoning is not None and mark == reasoning.close_text:
            self._abandon_candidate()
        if self._state in (_State.BLOCK, _State.CANDIDATE):
            rest = self._block_text(mark)
            if not rest or self.stopped:
                return
            self._push(rest.removesuffix(mark))
        if reasoning is not None and mark == reasoning.close_text:
            self._close_reasoning(mark)
        elif reasoning is not None and mark == reasoning.open_text:
            self._open_reasoning(mark)
        else:
            self._tool_mark(mark)

    def _tool_mark(self, mark: str) -> None:
        opens = self._tool_call is not None and mark == self._tool_call.open_text
        if self._state is _State.TRAILING and not opens:
            self._revert_trailing()
        if self._state is _State.REASONING:
            self._thought.push(self._think_close.release())
        if self._state in (_State.REASONING, _State.TRAILING):
            if opens and self._grammar is not None and self._reasoning is not None and self._thought.line_start:
                self._begin_block(mark, _State.CANDIDATE, declared_only=True)
            else:
                self._thought.push(mark)
            return
        self._say(self._tags.release())
        if opens and self._grammar is not None:
            self._begin_block(mark, _State.BLOCK, declared_only=False)
        else:
            self._say(mark)

    # -- text in each state

    def _start_text(self, text: str) -> str:
        """No single-id marker: reasoning opens where the answer begins with `<think>`."""
        self._start += text
        stripped = self._start.lstrip()
        if len(self._start) - len(stripped) <= MAX_NEWLINES:
            if stripped.startswith(THINK_OPEN):
                self._start = ""
                self._open_reasoning(THINK_OPEN)
                return stripped[len(THINK_OPEN) :]
            if THINK_OPEN.startswith(stripped):
                return ""
        return self._end_start()

    def _end_start(self) -> str:
        """The answer does not begin with reasoning; what was withheld is content."""
        self._state = _State.CONTENT
        held, self._start = self._start, ""
        return held

    def _content_text(self, text: str) -> str:
        before, tag, rest = self._tags.push(text)
        self._say(before)
        if tag is None or self.stopped:
            return ""
        self._begin_block(tag, _State.BLOCK, declared_only=self._tool_call is not None)
        return rest

    def _reasoning_text(self, text: str) -> str:
        before, tag, rest = self._think_close.push(text)
        self._thought.push(before)
        if tag is None:
            return ""
        self._close_reasoning(tag)
        return rest

    def _block_text(self, text: str) -> str:
        block = self._block
        if block is None:
            return text
        rest = block.feed(text)
        if rest is None:
            return ""
        self._end_block(block)
        return rest

    def _trailing_text(self, text: str) -> str:
        if self._trailing.blank(text):
            return ""
        self._revert_trailing()
        return text

    # -- channels

    def _say(self, text: str) -> None:
        self._content.push(text)
        matched = self._content.stops.matched
        if matched is not None:
            self.stopped, self.stop_sequence = True, matched

    def _in_reasoning(self) -> bool:
        return self._state in (_State.REASONING, _State.CANDIDATE, _State.TRAILING)

    def _open_announced(self) -> None:
        if self._announce:
            self._announce = False
            self._sink.event(ReasoningOpened(self._reasoning.open_text if self._reasoning else THINK_OPEN))

    def _open_reasoning(self, mark: str) -> None:
        """A second opening inside an open block changes nothing and is dropped."""
        if self._state is _State.TRAILING:
            self._revert_trailing()
        if self._state is _State.REASONING:
            return
        self._say(self._tags.release())
        if self.stopped:
            return
        self._content.pause()
        self._state = _State.REASONING
        self._thought.begin()
        self._sink.event(ReasoningOpened(mark))

    def _close_reasoning(self, mark: str) -> None:
        """A close marker outside a block is dropped."""
        if self._state is _State.TRAILING:
            self._revert_trailing()
        if self._state is not _State.REASONING:
            self._say(self._tags.release())
            return
        self._thought.end()
        self._sink.event(ReasoningClosed(mark))
        self._sink.forget()
        self._state = _State.CONTENT
        self._content.after_reasoning()

    # -- tool calls

    def _begin_block(self, tag: str, state: _State, *, declared_only: bool) -> None:
        if self._grammar is None:
            return
        self._state = state
        self._sink.cut()
        self._block_logprobs = self._sink.noted
        self._block = CallBlock(self._grammar, tag, declared_only=declared_only, tags=self._call_tags)

    def _end_block(self, block: CallBlock) -> None:
        self._block = None
        if self._state is _State.CANDIDATE:
            self._state = _State.TRAILING
            self._trailing.add(block.raw(), block.calls)
            if not block.calls:
                self._revert_trailing()
            return
        self._state = _State.CONTENT
        if block.calls:
            self.stopped |= self._calls.deliver(block.calls, logprobs=self._block_logprobs)
        else:
            self._say(block.raw())

    def _deliver_trailing(self) -> None:
        self._thought.end()
        self._sink.event(ReasoningClosed(self._reasoning.close_text if self._reasoning else THINK_CLOSE))
        self._state = _State.CONTENT
        self.stopped |= self._calls.deliver(self._trailing.take_calls(), logprobs=0)

    def _revert_trailing(self) -> None:
        """The calls inside reasoning were followed by more: they were only thought about."""
        self._state = _State.REASONING
        self._thought.push(self._trailing.take_text())

    def _abandon_candidate(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            self._trailing.add(block.raw(), [])
        self._revert_trailing()

    def _finish_block(self, *, truncated: bool) -> None:
        """The answer ends inside a block. Calls behind a block that never closed are looked for a few times."""
        block = self._block
        if block is None:
            return
        if not truncated and block.close():
            self._end_block(block)
            return
        raw = block.raw()
        self._block = None
        if self._state is _State.CANDIDATE:
            self._trailing.add(raw, [])
            self._revert_trailing()
            return
        self._state = _State.CONTENT
        closing = self._call_tags[1]
        end = raw.find(closing, len(block.opening))
        if end < 0 or self._rescans == 0:
            self._say(raw)
            return
        self._rescans -= 1
        end += len(closing)
        self._say(raw[:end])
        self._push(raw[end:])
