"""The shortest way found from a grammar's state to an accepted end. Used by the constraint's budget only.

The grammar is a black box: the search asks it which bytes may follow. It follows forced bytes, closes what is open
where it can, takes the cheapest kind of value elsewhere, and goes back to the last choice when a way grows too long.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher

from neuron.actors.text.constraint_vocabulary import Vocabulary

#: What a value may begin with, the cheapest kind first.
_OPENERS = b'n0123456789-tf"[{'
#: Closes a free text of the XML form.
XML_CLOSE = b"\n</parameter>\n"
#: States looked at for one plan, and within one string or number.
MAX_STATES = 3000
MAX_LOCAL_STATES = 160
#: Single bytes tried for one plan, 30 microseconds each: the event loop stands still meanwhile. Schemas that people
#: write need a tenth of it; one that asks for a hundred thousand characters would take seconds and find nothing.
MAX_STEPS = 6000
#: Ways to end one string or number that are kept for a later change of mind.
MAX_WAYS = 6
#: From so many allowed bytes on, only some of each kind are tried.
MANY = 40
#: No token is taken to stand for more bytes than this when the length of a plan is guessed.
LONGEST_PIECE = 8
_FEW = b'.0159afAFzZ-_:/@+T ,"\\}]'
#: Longest ways looked for, in ids of single bytes; the second where the first finds none, and so on.
_BOUNDS = (64, 512, 4096)

_STRUCTURE = re.compile(rb"[,}\]]")

Run = tuple[int, ...]


@dataclass(slots=True)
class Lexer:
    """Whether the text so far ends inside a JSON string. A line break ends any string: JSON is written on one line."""

    in_string: bool = False
    escaped: bool = False
    last: int = 0

    def feed(self, data: bytes) -> None:
        for byte in data:
            self.last = byte
            if byte == 0x0A:
                self.in_string = self.escaped = False
            elif self.escaped:
                self.escaped = False
            elif byte == 0x22:
                self.in_string = not self.in_string
            elif byte == 0x5C and self.in_string:
                self.escaped = True

    def copy(self) -> "Lexer":
        return Lexer(self.in_string, self.escaped, self.last)

    @property
    def in_number(self) -> bool:
        return not self.in_string and self.last in b"0123456789.-+eE"


class Closer:
    """Plans for one grammar. `specials`: ids a grammar may ask for by number (call tags); `names`: required keys."""

    def __init__(self, tokens: Vocabulary, specials: Iterable[int] = (), names: Iterable[bytes] = ()) -> None:
        self._tokens = tokens
        self._specials = tuple(specials)
        self._names = frozenset(names)
        self._byte_of = {token: byte for byte, token in enumerate(tokens.byte_ids) if token >= 0}
        self._known = np.array([byte for byte, token in enumerate(tokens.byte_ids) if token >= 0], np.int64)
        ids = np.array([tokens.byte_ids[byte] for byte in self._known], np.int64)
        self._cell, self._bit = ids >> 3, (ids & 7).astype(np.uint8)
        self._mask = np.zeros((tokens.size + 31) // 32 * 4, np.uint8)
        self._quote = self._run(b'"')
        self._closers = tuple(run for run in (self._run(b"}"), self._run(b"]")) if run)
        self._xml_close = self._run(XML_CLOSE)
        self._steps_left = MAX_STEPS

    def plan(self, matcher: LLMatcher, lexer: Lexer, most: int, *, states: int = MAX_STATES) -> list[int] | None:
        """Ids that end the answer from here, the end token last: at most `most`; None where none were found.

        `states`: how many states may be looked at.
        """
        self._steps_left = MAX_STEPS
        for bound in _BOUNDS:
            path = self._search(matcher.deep_copy(), lexer.copy(), bound, states)
            if path is not None:
                plan = self._shortened(matcher, path)
                return plan if len(plan) <= most else None
            if bound > LONGEST_PIECE * most or self._steps_left <= 0:
                return None
        return None

    def behind(self, matcher: LLMatcher, token: int, plan: list[int], most: int) -> list[int] | None:
        """A plan behind `token` that is made of the plan for the state before it; None where none of these fits."""
        piece = self._tokens.pieces[token]
        text, rest = self._split(plan)
        for after in _continuations(piece, text):
            new = [*self._greedy(after), *rest]
            if len(new) <= most and matcher.validate_tokens([token, *new]) == 1 + len(new):
                return new
        return None

    def _split(self, plan: list[int]) -> tuple[bytes, list[int]]:
        """The text a plan begins with, and the ids from its first special one on."""
        text = bytearray()
        for index, token in enumerate(plan):
            if token in self._specials or token == self._tokens.eos_id:
                return bytes(text), plan[index:]
            text += self._tokens.pieces[token]
        return bytes(text), []

    def _run(self, data: bytes) -> Run:
        run = tuple(self._tokens.byte_ids[byte] for byte in data)
        return run if -1 not in run else ()

    # -- the search ----------------------------------------------------------------------------

    def _search(self, matcher: LLMatcher, lexer: Lexer, bound: int, states: int) -> list[int] | None:
        """Depth first over choices, within `bound` ids. The matcher is used up."""
        path: list[int] = []
        choices: list[tuple[int, Lexer, Iterator[Run]]] = []
        for _ in range(states):
            if matcher.is_accepting():
                return [*path, self._tokens.eos_id]
            if self._steps_left <= 0:
                return None
            runs = iter(self._ways(matcher, lexer)) if len(path) < bound else iter(())
            choices.append((len(path), lexer.copy(), runs))
            while True:
                if not choices:
                    return None
                length, before, runs = choices[-1]
                if len(path) > length:
                    matcher.rollback(len(path) - length)
                    del path[length:]
                run = next(runs, None)
                if run is None:
                    choices.pop()
                    continue
                taken = matcher.try_consume_tokens(list(run))
                if taken == len(run):
                    break
                if matcher.is_error():
                    return None
                matcher.rollback(taken)
            path += run
            lexer = before.copy()
            lexer.feed(bytes(self._byte_of.get(token, 0) for token in run))
        return None

    def _ways(self, matcher: LLMatcher, lexer: Lexer) -> Iterable[Run]:
        """What may come next, the best first."""
        forced = self._forced(matcher)
        if forced:
            return (forced,)
        for special in self._specials:
            if self._takes(matcher, (special,)):
                return ((special,),)
        if self._xml_close and self._takes(matcher, self._xml_close):
            return (self._xml_close,)
        for run in (self._quote,) if lexer.in_string else self._closers:
            if run and self._takes(matcher, run):
                return (run,)
        allowed = self._allowed(matcher)
        if not lexer.in_string and not lexer.in_number:
            openers = [byte for byte in _OPENERS if byte in allowed]
            if openers:
                return self._value_starts(openers)
        return self._local(matcher, lexer, allowed)

    def _value_starts(self, openers: list[int]) -> list[Run]:
        """One digit stands for all where zero may begin the number; otherwise all may be needed."""
        if ord("0") in openers:
            openers = [byte for byte in openers if byte == ord("0") or not chr(byte).isdigit()]
        return [self._run(bytes([byte])) for byte in openers]

    def _local(self, matcher: LLMatcher, lexer: Lexer, allowed: frozenset[int]) -> list[Run]:
        """Shortest ways to end the string, number or word at hand: breadth first over kinds of states."""
        found: list[Run] = []
        level: list[tuple[Run, frozenset[int]]] = [((), allowed)]
        states = 0
        while level and states < MAX_LOCAL_STATES and len(found) < MAX_WAYS:
            following: list[tuple[Run, frozenset[int]]] = []
            seen: set[tuple[Run, frozenset[int]]] = set()
            for prefix, bytes_here in level:
                matcher.try_consume_tokens(list(prefix))
                for byte in _tried(bytes_here):
                    states += 1
                    step = self._step(matcher, byte)
                    if step is None:
                        continue
                    run, after = step
                    if self._ends(lexer, prefix + run, after):
                        found.append(prefix + run)
                    elif (prefix, after) not in seen:
                        seen.add((prefix, after))
                        following.append((prefix + run, after))
                matcher.rollback(len(prefix))
            level = following
            if len(allowed) > MANY:
                break  # free text that may not end yet: any character will do
        if not found:
            # Too far to see from here: a step in the right direction, and another look from there.
            return [prefix for prefix, _ in level[:MAX_WAYS] if prefix]
        found.sort(key=lambda run: (self._named(run) not in self._names, len(run)))
        return found

    def _step(self, matcher: LLMatcher, byte: int) -> tuple[Run, frozenset[int]] | None:
        """One byte and what it forces; afterwards the matcher is where it was."""
        self._steps_left -= 1
        run = self._run(bytes([byte]))
        if matcher.try_consume_tokens(list(run)) != len(run):
            return None
        forced = self._forced(matcher)
        taken = matcher.try_consume_tokens(list(forced)) if forced else 0
        after = self._allowed(matcher)
        if matcher.is_accepting():
            after = frozenset()
        matcher.rollback(len(run) + taken)
        return run + forced[:taken], after

    def _ends(self, lexer: Lexer, run: Run, after: frozenset[int]) -> bool:
        """The string is closed, or can be; the number or word can be followed by structure."""
        if not after:
            return True
        here = lexer.copy()
        here.feed(bytes(self._byte_of.get(token, 0) for token in run))
        if lexer.in_string:
            return not here.in_string or (ord('"') in after and not here.escaped)
        return here.in_string or bool(after & frozenset(b",}]")) or not after & frozenset(b"0123456789.eE+-")

    def _named(self, run: Run) -> bytes:
        """What a run spells of a key, up to its closing quote."""
        return bytes(self._byte_of.get(token, 0) for token in run).split(b'"')[0]

    # -- questions to the grammar --------------------------------------------------------------

    def _forced(self, matcher: LLMatcher) -> Run:
        """The bytes that must follow. The library writes a special token among them as 0xff and a name: not ours."""
        return self._run(matcher.compute_ff_bytes().split(b"\xff", 1)[0])

    @staticmethod
    def _takes(matcher: LLMatcher, run: Run) -> bool:
        return bool(matcher.validate_tokens(list(run)) == len(run))

    def _allowed(self, matcher: LLMatcher) -> frozenset[int]:
        """Bytes that may follow."""
        if matcher.is_stopped():
            return frozenset()
        matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        bits = (self._mask[self._cell] >> self._bit) & 1
        found = frozenset(self._known[bits.astype(np.bool_)].tolist())
        if found:
            return found
        return frozenset(byte for byte in self._known.tolist() if self._takes(matcher, (self._tokens.byte_ids[byte],)))

    def _shortened(self, matcher: LLMatcher, path: list[int]) -> list[int]:
        """The same bytes in longer tokens, where the grammar takes them."""
        out: list[int] = []
        text = bytearray()
        for token in [*path, -1]:
            byte = self._byte_of.get(token)
            if byte is not None:
                text.append(byte)
                continue
            if text:
                out += self._greedy(bytes(text))
                text.clear()
            out.append(token)
        out.pop()
        return out if len(out) < len(path) and matcher.validate_tokens(out) == len(out) else path

    def _greedy(self, data: bytes) -> list[int]:
        try:
            return list(self._tokens.trie.greedy_tokenize(data.decode()))
        except UnicodeDecodeError:
            return [self._tokens.byte_ids[byte] for byte in data]


def _continuations(piece: bytes, text: bytes) -> Iterator[bytes]:
    """What may end the answer behind `piece` where `text` would have ended it without: all of it, what `piece` has not
    said of it yet, or what follows the value that `piece` replaces (a string's closing quote, a list's bracket first).
    """
    yield text
    shared = 0
    while shared < min(len(piece), len(text)) and piece[shared] == text[shared]:
        shared += 1
    if shared:
        yield text[shared:]
    found = _STRUCTURE.search(text)
    following = text[found.start() :] if found is not None else b""
    for end in (b"", b'"', b"]", b"}"):
        yield end + following


def _tried(allowed: frozenset[int]) -> list[int]:
    """Printable ASCII first; of many, a few of each kind."""
    if len(allowed) > MANY:
        few = [byte for byte in _FEW if byte in allowed]
        if few:
            return few
    return sorted(allowed, key=lambda byte: (not 0x20 < byte < 0x7F, byte))[:MANY]
