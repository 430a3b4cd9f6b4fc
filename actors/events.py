"""InferenceEvent: the one currency between generation and the wire.

A session emits Start, then deltas, then exactly one Finish or Failed. Buffered answers fold the same events.
"""

from enum import StrEnum

import msgspec

from neuron.runtime.errors import NeuronError


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


class TokenLogprob(msgspec.Struct, frozen=True):
    """Natural-log probability of one token under the model's distribution before truncation."""

    token: str
    logprob: float
    bytes: bytes
    top: tuple["TokenLogprob", ...] = ()


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0
    cached_tokens: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Milliseconds. `prefill_tokens` are those actually computed (the prompt less what was cached)."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    prefill_tokens: int
    decode_tokens: int
    cached_tokens: int = 0


class Queued(msgspec.Struct, frozen=True):
    """Sent while the request waits; `position` 1 is next. Becomes a comment on the wire."""

    position: int
    waited_s: float


class Start(msgspec.Struct, frozen=True):
    """The request was accepted; nothing was computed yet."""

    prompt_tokens: int


class TextDelta(msgspec.Struct, frozen=True):
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningDelta(msgspec.Struct, frozen=True):
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningOpened(msgspec.Struct, frozen=True):
    """A think block opened (also when the rendered prompt opened it). `marker` is the model's own text."""

    marker: str


class ReasoningClosed(msgspec.Struct, frozen=True):
    marker: str


class ToolCallStart(msgspec.Struct, frozen=True):
    """`index` counts calls of one answer from 0; calls never interleave."""

    index: int
    call_id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """Fragments concatenate to valid JSON."""

    index: int
    fragment: str


class ToolCallEnd(msgspec.Struct, frozen=True):
    """`arguments` is the whole JSON text, equal to the joined fragments."""

    index: int
    arguments: str


class Finish(msgspec.Struct, frozen=True):
    reason: FinishReason
    usage: Usage
    timings: Timings
    stop_sequence: str | None = None


class Failed(msgspec.Struct, frozen=True):
    error: NeuronError
    usage: Usage | None = None


Delta = TextDelta | ReasoningDelta | ReasoningOpened | ReasoningClosed | ToolCallStart | ToolCallArguments | ToolCallEnd
InferenceEvent = Start | Queued | Delta | Finish | Failed
