"""Builds a tokenizer from tokenizer.json and tokenizer_config.json of a repository."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from neuron.actors.errors import InvalidTokenizer, SourceUnreadable
from neuron.actors.text.byte_pieces import byte_level_piece, sentencepiece_piece
from neuron.actors.text.control import AddedToken, end_tokens, is_control
from neuron.actors.text.generation_defaults import read_object
from neuron.actors.text.native import native_errors
from neuron.actors.text.tokenizer import EncodePlain, Place, SegmentTokenizer

#: A vocabulary of 250,000 pieces is about 20 MB of JSON.
MAX_TOKENIZER_BYTES = 64 << 20
MAX_VOCABULARY = 1 << 21
Json = dict[str, Any]


def hf_tokenizer(
    directory: Path, *, model_id: str, template_texts: Sequence[str] = (), eos_ids: frozenset[int] = frozenset()
) -> SegmentTokenizer:
    """The tokenizer of `directory`. `eos_ids`: end tokens that config files name. Raises InvalidTokenizer."""
    content = _read(directory / "tokenizer.json", model_id)
    named = read_object(directory / "tokenizer_config.json", model_id, strict=True)
    config = {
        **read_object(directory / "special_tokens_map.json", model_id),
        **{key: value for key, value in named.items() if value is not None},
    }
    with native_errors("tokenizer.json cannot be used.", model_id):
        description: Json = msgspec.json.decode(content, type=dict[str, Any])
        added = _added_tokens(description, config)
        control = [token for token in added if is_control(token, template_texts)]
        native = _native(description, control)
        return _assemble(native, description, config, added, control, eos_ids)


def _read(path: Path, model_id: str) -> bytes:
    try:
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise InvalidTokenizer(f"tokenizer.json is larger than {MAX_TOKENIZER_BYTES >> 20} MiB.", model_id=model_id)
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise InvalidTokenizer("The model has no tokenizer.json.", model_id=model_id) from error
    except OSError as error:
        raise SourceUnreadable(f"tokenizer.json cannot be read: {error.strerror}.", model_id=model_id) from error


def _native(description: Json, control: Sequence[AddedToken]) -> Tokenizer:
    """The native tokenizer, made to treat control tokens as ordinary text (they are found before it runs)."""
    held = {token.id for token in control}
    entries = [dict(entry, special=True) if entry["id"] in held else dict(entry, special=False)
               for entry in description.get("added_tokens") or []]  # fmt: skip
    cut = {**description, "added_tokens": entries, "post_processor": None, "truncation": None, "padding": None}
    native = Tokenizer.from_str(msgspec.json.encode(cut).decode())
    native.encode_special_tokens = True
    return native


def _encoder(native: Tokenizer, description: Json, control: Sequence[AddedToken]) -> EncodePlain:
    """Vocabularies that put a blank in front of text do so at its start, or ("always") after each token too."""
    unprefixed = _without_prefix(description)
    inner = native if unprefixed == description else _native(unprefixed, control)
    first_only = '"prepend_scheme":"first"' in msgspec.json.encode(description.get("pre_tokenizer")).decode()

    def encode(text: str, place: Place) -> list[int]:
        bare = place is Place.INSIDE or (first_only and place is Place.AFTER_TOKEN)
        ids: list[int] = (inner if bare else native).encode(text, add_special_tokens=False).ids
        return ids

    return encode


def _without_prefix(step: Any, top: bool = True) -> Any:
    """The same description with no blank put in front of text."""
    if top:
        changed = {name: _without_prefix(step.get(name), False) for name in ("normalizer", "pre_tokenizer")}
        return {**step, **changed}
    if isinstance(step, list):
        return [_without_prefix(item, False) for item in step if not _is_prepend(item)]
    if not isinstance(step, dict):
        return step
    if _is_prepend(step):
        return None
    result = {key: _without_prefix(value, False) for key, value in step.items()}
    if step.get("type") == "Metaspace":
        result["prepend_scheme"] = "never"
        result.pop("add_prefix_space", None)
    elif "add_prefix_space" in step:
        result["add_prefix_space"] = False
    return result


def _is_prepend(step: object) -> bool:
    return isinstance(step, dict) and step.get("type") == "Prepend"


def _added_tokens(description: Json, config: Mapping[str, object]) -> list[AddedToken]:
    """tokenizer.json's entries; tokenizer_config's added_tokens_decoder may add to them."""
    tokens = {
        int(entry["id"]): AddedToken(
            id=int(entry["id"]),
            text=str(entry["content"]),
            special=bool(entry.get("special")),
            lstrip=bool(entry.get("lstrip")),
            rstrip=bool(entry.get("rstrip")),
            single_word=bool(entry.get("single_word")),
        )
        for entry in description.get("added_tokens") or []
    }
    decoder = config.get("added_tokens_decoder")
    for key, entry in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(entry, dict) and str(key).isdigit() and int(key) not in tokens:
            tokens[int(key)] = AddedToken(
                id=int(key),
                text=str(entry.get("content")),
                special=bool(entry.get("special")),
                lstrip=bool(entry.get("lstrip")),
                rstrip=bool(entry.get("rstrip")),
            )
    return [token for token in tokens.values() if token.text]


def _assemble(
    native: Tokenizer,
    description: Json,
    config: Mapping[str, object],
    added: Sequence[AddedToken],
    control: Sequence[AddedToken],
    eos_ids: frozenset[int],
) -> SegmentTokenizer:
    texts = {token.text: token.id for token in added}
    eos_token, bos_token = token_text(config.get("eos_token")), token_text(config.get("bos_token"))
    ends = eos_ids | ({texts[eos_token]} if eos_token in texts else frozenset())
    vocabulary: dict[str, int] = native.get_vocab(with_added_tokens=False)
    size = 1 + max(max(vocabulary.values(), default=-1), max((token.id for token in added), default=-1))
    if size > MAX_VOCABULARY:
        raise ValueError(size)
    decoder = _mentions(description.get("decoder"))
    byte_level = "ByteLevel" in decoder or "ByteLevel" in _mentions(description.get("pre_tokenizer"))
    pieces = [b""] * size
    for text, index in vocabulary.items():
        pieces[index] = byte_level_piece(text) if byte_level else sentencepiece_piece(text, is_byte=len(text) == 6)
    for token in added:
        pieces[token.id] = token.text.encode(errors="replace")
    return SegmentTokenizer(
        encode_plain=_encoder(native, description, control),
        token_bytes=pieces,
        added=added,
        control=control,
        eos_ids=frozenset(index for index in ends if index < size) or end_tokens(added),
        bos_token=bos_token,
        eos_token=eos_token,
        strip_blank=not byte_level and ("Strip" in decoder or "Metaspace" in decoder),
    )


def token_text(value: object) -> str:
    """A special token of tokenizer_config.json: a string, or an object with `content`; "" when absent."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _mentions(step: object) -> set[str]:
    """Types of a processing step and of all steps inside it."""
    if isinstance(step, list):
        return set().union(*map(_mentions, step)) if step else set()
    if not isinstance(step, dict):
        return set()
    return {str(step.get("type"))}.union(*(_mentions(value) for value in step.values()))
