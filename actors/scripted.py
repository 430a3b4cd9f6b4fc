"""A script: the JSON file behind the scripted backend, and the vocabulary that follows from it.

Read by the device process (which spells the script out as logits), by the scripted tokenizer and by preflight.
"""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec

MAX_FILE_BYTES = 32 << 20
MAX_VOCABULARY = 1 << 20
BYTE_TOKENS = 256
IMAGE_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
"""Special tokens that a script with the capability "vision" has beside those it names."""


class ScriptError(ValueError):
    """The script cannot be used. The text names the field, never the file's place."""


class FaultKind(StrEnum):
    """`device` raises the platform library's own exception class with the script's text; `exit` ends with status 3."""

    DEVICE = "device"
    HOST = "host"
    OOM = "oom"
    NAN = "nan"
    KILL = "kill"
    HANG = "hang"
    EXIT = "exit"


class FaultPhase(StrEnum):
    LOAD = "load"
    PREFILL = "prefill"
    DECODE = "decode"


class ScriptFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What goes wrong and when.

    `at` counts emitted tokens in decode (0 = the step that would give the first entry), prefill calls in
    prefill (the last one when there are fewer) and progress reports in load. `times`: how often it fires in
    the life of the daemon, counted for each file content.
    """

    kind: FaultKind
    at: int = 0
    phase: FaultPhase = FaultPhase.DECODE
    text: str = ""
    times: int = 1


class Literal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`{"bytes": hex}`: one ordinary token of these bytes; `{"eos": true}`: the end token."""

    bytes: str | None = None
    eos: bool = False


Entry = str | Literal


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer. `when` is looked for in the rendered prompt; a list that ends without eos is followed by eos."""

    when: str | None = None
    emit: tuple[Entry, ...] = ()
    repeat: bool = False
    delay_ms: float = 0.0
    prefill_ms_per_token: float = 0.0
    fault: ScriptFault | None = None


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. Keys as in the contract; an `eos_token` in neither list becomes one more special token."""

    turns: tuple[Turn, ...]
    context_length: int = 4096
    capabilities: tuple[str, ...] = ("text",)
    chat_template: str | None = None
    special_tokens: tuple[str, ...] = ()
    added_tokens: tuple[str, ...] = ()
    eos_token: str = "<|im_end|>"
    vocab_size: int | None = None


def read_script(path: Path) -> Script:
    """Read and check a script file. Raises ScriptError."""
    return parse_script(read_content(path))


def read_content(path: Path) -> bytes:
    """The bytes of a script file. Raises ScriptError, also for what is no regular file."""
    try:
        if not path.is_file():
            raise ScriptError("The script cannot be read: there is no such file.")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ScriptError(f"The script is larger than {MAX_FILE_BYTES >> 20} MiB.")
        return path.read_bytes()
    except OSError as error:
        raise ScriptError(f"The script cannot be read: {error.strerror or 'input/output error'}.") from error


def parse_script(content: bytes) -> Script:
    """Decode and check the JSON of a script. Raises ScriptError naming the field."""
    try:
        script = msgspec.json.decode(content, type=Script)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ScriptError(f"The script is not valid: {error}") from error
    for problem in _problems(script):
        raise ScriptError(f"The script is not valid: {problem}")
    ScriptVocabulary(script)
    return script


def _problems(script: Script) -> Iterator[str]:
    if not 1 <= script.context_length <= 1 << 24:
        yield "context_length must lie between 1 and 16777216"
    if script.vocab_size is not None and not 1 <= script.vocab_size <= MAX_VOCABULARY:
        yield f"vocab_size must lie between 1 and {MAX_VOCABULARY}"
    named = (*script.special_tokens, *script.added_tokens)
    if "" in (*named, script.eos_token):
        yield "special_tokens, added_tokens and eos_token must not hold an empty text"
    if len(set(named)) != len(named):
        yield "special_tokens and added_tokens name a token twice"
    for index, turn in enumerate(script.turns):
        for problem in _turn_problems(turn):
            yield f"{problem} at turns[{index}]"


def _turn_problems(turn: Turn) -> Iterator[str]:
    if not 0 <= turn.delay_ms <= 3.6e6:
        yield "delay_ms must lie between 0 and 3600000"
    if not 0 <= turn.prefill_ms_per_token <= 3.6e6:
        yield "prefill_ms_per_token must lie between 0 and 3600000"
    if turn.fault is not None and (turn.fault.at < 0 or turn.fault.times < 0):
        yield "fault.at and fault.times must not be negative"
    for entry in turn.emit:
        if isinstance(entry, Literal):
            if (entry.bytes is None) is not entry.eos:
                yield "an emit entry is a string, {bytes: hex} or {eos: true}"
            try:
                bytes.fromhex(entry.bytes or "")
            except ValueError:
                yield "emit bytes must be hexadecimal"
        elif not entry.isascii():
            try:
                entry.encode()
            except UnicodeEncodeError:
                yield "an emit entry holds an unpaired surrogate"


class ScriptVocabulary:
    """Ids of a script: 0..255 the bytes, then special tokens, added tokens, and one id for each distinct piece.

    Order is that of the file; IMAGE_TOKENS follow the special tokens where a script sees. A piece of a single byte is
    that byte's id; a string equal to a special or added token is that token; `{"bytes"}` is always an ordinary token,
    also where it spells a marker.
    """

    def __init__(self, script: Script) -> None:
        """Raises ScriptError when `vocab_size` is smaller than the ids in use."""
        self._bytes: list[bytes] = [bytes([value]) for value in range(BYTE_TOKENS)]
        #: Text -> id of the special and the added tokens: what may be recognised in control text.
        self.named: dict[str, int] = {}
        specials = script.special_tokens
        if script.eos_token not in (*specials, *script.added_tokens):
            specials = (*specials, script.eos_token)
        if "vision" in script.capabilities:
            specials += tuple(text for text in IMAGE_TOKENS if text not in (*specials, *script.added_tokens))
        for text in (*specials, *script.added_tokens):
            self.named[text] = self._append(text.encode())
        #: Ids flagged special: they give no text.
        self.special_ids: frozenset[int] = frozenset(self.named[text] for text in specials)
        self.eos_id: int = self.named[script.eos_token]
        self._pieces: dict[bytes, int] = {piece: value for value, piece in enumerate(self._bytes[:BYTE_TOKENS])}
        for turn in script.turns:
            for entry in turn.emit:
                self._add_piece(entry)
        #: Ids in use, without padding.
        self.size: int = len(self._bytes)
        #: Length of a logits row.
        self.row_size: int = max(self.size, script.vocab_size or 0)
        if script.vocab_size is not None and script.vocab_size < self.size:
            raise ScriptError(f"The script is not valid: vocab_size must be at least {self.size}")

    def _append(self, piece: bytes) -> int:
        self._bytes.append(piece)
        return len(self._bytes) - 1

    def _add_piece(self, entry: Entry) -> None:
        if isinstance(entry, Literal):
            if entry.eos:
                return
            piece = bytes.fromhex(entry.bytes or "")
        elif entry in self.named:
            return
        else:
            piece = entry.encode()
        if piece not in self._pieces:
            self._pieces[piece] = self._append(piece)

    def entry_id(self, entry: Entry) -> int:
        """The id that one `emit` entry of this script stands for."""
        if isinstance(entry, Literal):
            return self.eos_id if entry.eos else self._pieces[bytes.fromhex(entry.bytes or "")]
        known = self.named.get(entry)
        return self._pieces[entry.encode()] if known is None else known

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one id (a special or added token: its text). Raises IndexError outside `0..size-1`."""
        if token_id < 0:
            raise IndexError(token_id)
        return self._bytes[token_id]

    def decode(self, token_ids: list[int]) -> bytes:
        """Joined bytes; ids outside the vocabulary raise IndexError."""
        return b"".join([self.token_bytes(token_id) for token_id in token_ids])
