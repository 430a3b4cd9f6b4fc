"""Builds a tokenizer from GGUF metadata: byte-level BPE, SentencePiece (scores) and raw BPE vocabularies."""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

from tokenizers import AddedToken as NativeToken
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from neuron.actors.errors import InvalidTokenizer
from neuron.actors.text.byte_pieces import byte_level_piece, sentencepiece_piece
from neuron.actors.text.control import END_TEXTS, AddedToken, end_tokens, is_control
from neuron.actors.text.native import native_errors
from neuron.actors.text.pretokenizers import DEFAULT, PRE_TOKENIZERS, PreTokenizer
from neuron.actors.text.tokenizer import EncodePlain, Place, SegmentTokenizer
from neuron.runtime.logs import get_logger

log = get_logger(__name__)

Metadata = Mapping[str, object]
_PREFIX = "tokenizer.ggml."
#: Longer pieces of a scored vocabulary are not reachable by merges (real ones have at most 48 characters).
_LONGEST_PIECE = 256


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class GgufVocabulary:
    """The checked tokenizer keys of a file. Raises InvalidTokenizer for what is missing or inconsistent."""

    def __init__(self, metadata: Metadata, model_id: str) -> None:
        self._metadata = metadata
        self.model_id = model_id
        self.model = self.text("model")
        self.tokens = self._strings("tokens")
        if not self.tokens:
            raise self.invalid("The file holds no tokenizer (tokenizer.ggml.tokens is missing).")
        self.types = self._numbers("token_type", TokenType.NORMAL)
        self.merges = self._strings("merges")

    def invalid(self, message: str) -> InvalidTokenizer:
        return InvalidTokenizer(message, model_id=self.model_id)

    def text(self, key: str) -> str:
        value = self._metadata.get(_PREFIX + key, "")
        return value if isinstance(value, str) else ""

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(_PREFIX + key, default)
        return value if isinstance(value, bool) else default

    def id(self, key: str) -> int | None:
        value = self._metadata.get(f"{_PREFIX}{key}_token_id")
        return value if isinstance(value, int) and 0 <= value < len(self.tokens) else None

    def scores(self) -> list[float]:
        value = self._sequence("scores")
        if len(value) != len(self.tokens):
            raise self.invalid("tokenizer.ggml.scores does not have one entry for each token.")
        if not all(isinstance(score, int | float) for score in value):
            raise self.invalid("tokenizer.ggml.scores is not a list of numbers.")
        return [float(score) for score in value if isinstance(score, int | float)]

    def name(self) -> str:
        value = self._metadata.get("general.name", "")
        return value if isinstance(value, str) else ""

    def _sequence(self, key: str) -> Sequence[object]:
        value = self._metadata.get(_PREFIX + key, ())
        return value if isinstance(value, Sequence) and not isinstance(value, str) else _as_list(value)

    def _strings(self, key: str) -> list[str]:
        values = self._sequence(key)
        if not all(isinstance(value, str) for value in values):
            raise self.invalid(f"tokenizer.ggml.{key} is not a list of strings.")
        return [str(value) for value in values]

    def _numbers(self, key: str, default: int) -> list[int]:
        values = self._sequence(key)
        if not values:
            return [default] * len(self.tokens)
        if len(values) != len(self.tokens):
            raise self.invalid(f"tokenizer.ggml.{key} does not have one entry for each token.")
        if not all(isinstance(value, int) for value in values):
            raise self.invalid(f"tokenizer.ggml.{key} is not a list of integers.")
        return [value for value in values if isinstance(value, int)]


def _as_list(value: object) -> list[object]:
    """Numeric arrays of the reader (numpy) as Python numbers."""
    listed: object = getattr(value, "tolist", list)()
    return listed if isinstance(listed, list) else []


def gguf_tokenizer(
    metadata: Metadata, *, model_id: str, template_texts: Sequence[str] = (), eos_ids: frozenset[int] = frozenset()
) -> SegmentTokenizer:
    """The tokenizer that the metadata describes. `eos_ids`: more end tokens. Raises InvalidTokenizer."""
    vocabulary = GgufVocabulary(metadata, model_id)
    added = _added_tokens(vocabulary)
    control = [token for token in added if is_control(token, template_texts)]
    held = {token.id for token in control}
    plain = [token for token in added if token.id not in held]
    with native_errors("The tokenizer's merges or tokens do not fit together.", model_id):
        native, piece = _builder(vocabulary)(vocabulary, plain)
    added_ids = {token.id for token in added}
    token_bytes = [
        text.encode(errors="replace") if index in added_ids else piece(text, vocabulary.types[index])
        for index, text in enumerate(vocabulary.tokens)
    ]
    bos, eos = vocabulary.id("bos"), vocabulary.id("eos")
    prefixed = vocabulary.model == "llama" and vocabulary.flag("add_space_prefix", True)
    return SegmentTokenizer(
        encode_plain=_encoder(native, prefixed),
        token_bytes=token_bytes,
        added=added,
        control=control,
        eos_ids=_end_ids(vocabulary, added) | {index for index in eos_ids if index < len(token_bytes)},
        bos_token="" if bos is None else vocabulary.tokens[bos],
        eos_token="" if eos is None else vocabulary.tokens[eos],
        strip_blank=prefixed,
    )


def _encoder(native: Tokenizer, prefixed: bool) -> EncodePlain:
    def encode(text: str, place: Place) -> list[int]:
        whole = " " + text if prefixed and place is not Place.INSIDE else text
        ids: list[int] = native.encode(whole, add_special_tokens=False).ids
        return ids

    return encode


def _added_tokens(vocabulary: GgufVocabulary) -> list[AddedToken]:
    """Control, unknown and user-defined tokens. Phi-3's take the blanks after them with them (as its own file says)."""
    takes_blanks = "phi-3" in vocabulary.name().lower() or "phi3" in vocabulary.name().lower()
    ends = {vocabulary.id("eos"), vocabulary.id("eot"), vocabulary.id("eom")}
    added = []
    for index, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if not text or kind not in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
            continue
        special = kind != TokenType.USER_DEFINED or index in ends or text in END_TEXTS
        rstrip = takes_blanks and special and text not in ("<unk>", "<s>", "<|endoftext|>")
        added.append(AddedToken(id=index, text=text, special=special, rstrip=rstrip))
    return added


def _end_ids(vocabulary: GgufVocabulary, added: Sequence[AddedToken]) -> frozenset[int]:
    named = {vocabulary.id("eos"), vocabulary.id("eot"), vocabulary.id("eom")} - {None}
    known = end_tokens(added)
    return frozenset(index for index in named | known if index is not None)


Built = tuple[Tokenizer, Callable[[str, int], bytes]]


def _builder(vocabulary: GgufVocabulary) -> Callable[[GgufVocabulary, list[AddedToken]], Built]:
    builders = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _raw_bpe, "bert": _word_piece}
    builder = builders.get(vocabulary.model)
    if builder is None:
        shown = vocabulary.model[:64] or "(none)"
        raise vocabulary.invalid(f"The tokenizer model {shown!r} is not supported.")
    return builder


def _pre_tokenizer(vocabulary: GgufVocabulary) -> PreTokenizer:
    name = vocabulary.text("pre")
    if not name:
        log.warning(
            "the file names no pre-tokenizer (tokenizer.ggml.pre): using the default, answers may be worse",
            model=vocabulary.model_id,
            pre=DEFAULT,
        )
        name = DEFAULT
    known = PRE_TOKENIZERS.get(name)
    if known is None:
        raise vocabulary.invalid(f"The pre-tokenizer {name[:64]!r} is not known (tokenizer.ggml.pre).")
    return known


def _split_merges(vocabulary: GgufVocabulary, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Pairs of the merges that the vocabulary can express. A merge is two texts with a blank between them."""
    pairs = []
    for merge in vocabulary.merges:
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut > 0 and left in ids and right in ids and left + right in ids:
            pairs.append((left, right))
    if not pairs and len(ids) > 512:
        raise vocabulary.invalid("The tokenizer has no usable merges (tokenizer.ggml.merges).")
    return pairs


def _byte_level(vocabulary: GgufVocabulary, plain: list[AddedToken]) -> Built:
    pre = _pre_tokenizer(vocabulary)
    ids = _ids(vocabulary)
    native = Tokenizer(models.BPE(ids, _split_merges(vocabulary, ids), ignore_merges=pre.whole_tokens))
    splits: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns
    ]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    native.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    _add_plain(native, plain)
    return native, lambda text, _kind: byte_level_piece(text)


def _sentencepiece(vocabulary: GgufVocabulary, plain: list[AddedToken]) -> Built:
    """Adjacent pieces whose join is a piece are merged, the best score first: BPE with merges in order of score."""
    ids = _ids(vocabulary)
    merges = _merges_by_score(vocabulary.tokens, vocabulary.scores(), ids)
    unknown = vocabulary.id("unknown")
    unk_token = vocabulary.tokens[unknown] if unknown is not None else _text_of(vocabulary, TokenType.UNKNOWN)
    has_bytes = TokenType.BYTE in vocabulary.types
    native = Tokenizer(models.BPE(ids, merges, unk_token=unk_token, fuse_unk=True, byte_fallback=has_bytes))
    native.normalizer = normalizers.Replace(" ", "\u2581")
    _add_plain(native, plain)
    return native, _sentencepiece_bytes


def _raw_bpe(vocabulary: GgufVocabulary, plain: list[AddedToken]) -> Built:
    """BPE over raw characters with blanks as U+2581, split only at line ends."""
    ids = _ids(vocabulary)
    native = Tokenizer(models.BPE(ids, _split_merges(vocabulary, ids), byte_fallback=True, fuse_unk=True))
    native.normalizer = normalizers.Replace(" ", "\u2581")
    native.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    _add_plain(native, plain)
    return native, _sentencepiece_bytes


def _word_piece(vocabulary: GgufVocabulary, plain: list[AddedToken]) -> Built:
    """Lower-cased words; pieces that begin a word carry U+2581, the others continue one."""
    ids = {
        (text if kind != TokenType.NORMAL else text[1:] if text.startswith("\u2581") else "##" + text): index
        for index, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
    }
    unknown = vocabulary.id("unknown")
    if unknown is None:
        raise vocabulary.invalid("The tokenizer names no unknown token (tokenizer.ggml.unknown_token_id).")
    native = Tokenizer(models.WordPiece(ids, unk_token=vocabulary.tokens[unknown], max_input_chars_per_word=100))
    native.normalizer = normalizers.BertNormalizer()
    native.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    _add_plain(native, plain)
    return native, _sentencepiece_bytes


def _sentencepiece_bytes(text: str, kind: int) -> bytes:
    return sentencepiece_piece(text, is_byte=kind == TokenType.BYTE)


def _merges_by_score(tokens: Sequence[str], scores: Sequence[float], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to join two pieces to a third, the best score of the joined piece first."""
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for text, score in zip(tokens, scores, strict=True):
        if len(text) > _LONGEST_PIECE:
            continue
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                found.append((-score, ids[left], ids[right], (left, right)))
    found.sort()
    return [pair for *_, pair in found]


def _ids(vocabulary: GgufVocabulary) -> dict[str, int]:
    """Text -> id; the first of several equal texts counts."""
    ids: dict[str, int] = {}
    for index, text in enumerate(vocabulary.tokens):
        ids.setdefault(text, index)
    return ids


def _text_of(vocabulary: GgufVocabulary, kind: TokenType) -> str | None:
    return vocabulary.tokens[vocabulary.types.index(kind)] if kind in vocabulary.types else None


def _add_plain(native: Tokenizer, plain: Sequence[AddedToken]) -> None:
    native.add_tokens([NativeToken(token.text, normalized=False, special=False) for token in plain])
