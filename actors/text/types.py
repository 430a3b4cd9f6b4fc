"""The interfaces of the text machinery: tokenizers, detokenisers, chat templates, output parsing."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from neuron.actors.events import Delta, TokenLogprob


class Segment(msgspec.Struct, frozen=True):
    """A run of prompt text. Control tokens are recognised in it only when `control` is true."""

    text: str
    control: bool


class Detokenizer(Protocol):
    """Incremental and UTF-8 safe: joined results equal decoding the whole list at once."""

    def push(self, token_id: int) -> str:
        """Text that became certain with this token; "" while a character is incomplete."""

    def flush(self) -> str:
        """What is left (an incomplete character becomes U+FFFD)."""


class Tokenizer(Protocol):
    #: Ids known to the tokenizer; logits rows past them are masked.
    vocab_size: int
    #: Union of generation_config, config and tokenizer end tokens.
    eos_ids: frozenset[int]
    bos_token: str
    eos_token: str

    def encode(self, segments: Sequence[Segment]) -> list[int]:
        """Ids of a rendered prompt; adds no begin token of its own."""

    def token_id(self, text: str) -> int | None:
        """The id of an added or special token of exactly this text; None if there is none."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for (a special token: its text)."""

    def detokenizer(self) -> Detokenizer:
        """A fresh detokeniser. Special tokens (flagged special) give no text, other added tokens do."""


class Markers(msgspec.Struct, frozen=True):
    """Single ids that open and close a block, found in the tokenizer, with their texts."""

    open_id: int
    close_id: int
    open_text: str
    close_text: str


class OutputParser(Protocol):
    """Token ids and text in, deltas out. The result does not depend on how the text was cut into tokens."""

    #: True once nothing more may be generated (a stop string matched).
    stopped: bool
    stop_sequence: str | None
    #: Tokens so far that belong to reasoning (markers included).
    reasoning_tokens: int

    def feed(self, token_id: int, text: str, logprob: TokenLogprob | None = None) -> list[Delta]: ...

    def finish(self, *, truncated: bool) -> list[Delta]:
        """Flush what was held back. `truncated`: the token limit cut the answer (a cut call becomes text)."""

    @property
    def tool_calls(self) -> int:
        """Complete tool calls delivered so far."""
        ...


class RenderedPrompt(msgspec.Struct, frozen=True):
    """`segments` joined are the template's output. `opens_reasoning`: it ends inside an open think block."""

    segments: tuple[Segment, ...]
    text: str
    opens_reasoning: bool = False
