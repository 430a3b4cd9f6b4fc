"""A Tokenizer as llguidance's trie of token bytes; built once for each tokenizer (about half a second at 150,000)."""

import threading
from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary, ref

import msgspec
from llguidance import LLTokenizer, TokenizerWrapper

from neuron.actors.errors import UnsupportedParameter
from neuron.actors.text.types import Segment, Tokenizer

#: Vocabularies up to this size are searched for tokens that their own encoder never writes.
SMALL = 8192


class Vocabulary(msgspec.Struct, frozen=True):
    """`unwritten`: ids the encoder never gives (a script's pieces). Where a grammar forces the next bytes the library
    allows only the encoder's own tokens for them, so these ids are asked for one by one."""

    trie: LLTokenizer
    size: int
    unwritten: tuple[int, ...]
    #: Byte -> id of the token of that byte alone, -1 where there is none.
    byte_ids: tuple[int, ...]
    eos_id: int
    #: The bytes of every token.
    pieces: Sequence[bytes]


_cache: WeakKeyDictionary[Tokenizer, Vocabulary] = WeakKeyDictionary()
_lock = threading.Lock()


class _Tokens:
    """The attributes llguidance asks of a tokenizer. Added tokens count as special: no text of a grammar gives them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        #: Weak: what the cache holds must not keep its own key alive.
        self._tokenizer = ref(tokenizer)
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = None
        self.tokens: Sequence[bytes] = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self.special_token_ids = [
            index for index, piece in enumerate(self.tokens) if _is_added(tokenizer, index, piece)
        ]

    def __call__(self, text: bytes | str) -> list[int]:
        tokenizer = self._tokenizer()
        plain = text.decode(errors="replace") if isinstance(text, bytes) else text
        return [] if tokenizer is None else tokenizer.encode([Segment(plain, control=False)])


def _is_added(tokenizer: Tokenizer, index: int, piece: bytes) -> bool:
    try:
        return tokenizer.token_id(piece.decode()) == index
    except UnicodeDecodeError:
        return False


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """The trie of `tokenizer`. Blocking; concurrent callers wait for one build.

    Raises UnsupportedParameter for a tokenizer without an end token: a constrained answer could never end.
    """
    if not tokenizer.eos_ids:
        raise UnsupportedParameter("This model has no end token, so its answers cannot be constrained.")
    with _lock:
        found = _cache.get(tokenizer)
        if found is None:
            tokens = _Tokens(tokenizer)
            trie = LLTokenizer(TokenizerWrapper(tokens), eos_token=sorted(tokenizer.eos_ids))
            found = Vocabulary(
                trie,
                tokenizer.vocab_size,
                tuple(_unwritten(tokenizer, tokens)),
                _single_bytes(tokens),
                tokens.eos_token_id,
                tokens.tokens,
            )
            _cache[tokenizer] = found
        return found


def _unwritten(tokenizer: Tokenizer, tokens: _Tokens) -> Iterator[int]:
    if tokenizer.vocab_size > SMALL:
        return
    special = set(tokens.special_token_ids)
    for token_id, piece in enumerate(tokens.tokens):
        if len(piece) > 1 and token_id not in special and tokens(piece) != [token_id]:
            yield token_id


def _single_bytes(tokens: _Tokens) -> tuple[int, ...]:
    special = set(tokens.special_token_ids)
    found = [-1] * 256
    for token_id, piece in enumerate(tokens.tokens):
        if len(piece) == 1 and token_id not in special and found[piece[0]] < 0:
            found[piece[0]] = token_id
    return tuple(found)
