"""The tokenizer of the scripted backend: bytes, and the script's named tokens in control text."""

from neuron.actors.scripted import Script, ScriptVocabulary
from neuron.actors.text.control import AddedToken
from neuron.actors.text.tokenizer import SegmentTokenizer


def scripted_tokenizer(script: Script) -> SegmentTokenizer:
    """Every named token is a control token: user text that spells one stays bytes."""
    vocabulary = ScriptVocabulary(script)
    added = tuple(
        AddedToken(id=token_id, text=text, special=token_id in vocabulary.special_ids)
        for text, token_id in vocabulary.named.items()
    )
    return SegmentTokenizer(
        encode_plain=lambda text, _place: list(text.encode()),
        token_bytes=[vocabulary.token_bytes(token_id) for token_id in range(vocabulary.size)],
        added=added,
        control=added,
        eos_ids=frozenset({vocabulary.eos_id}),
        eos_token=script.eos_token,
    )
