"""Checks chat_template_kwargs: reserved names and bounds. Used by the front doors and by the renderer."""

from collections.abc import Mapping

import msgspec

from neuron.actors.errors import InvalidValue

PARAM = "chat_template_kwargs"
MAX_DEPTH = 16
MAX_NODES = 128
MAX_BYTES = 16 << 10
#: Set by the server, or arguments of the rendering call that a request must never reach.
RESERVED = frozenset(
    """chat_template tokenize tools documents conversation messages continue_final_message add_generation_prompt
    padding truncation max_length return_tensors return_dict return_assistant_tokens_mask tokenizer_kwargs
    sanitize_control_tokens bos_token eos_token unk_token pad_token cls_token sep_token mask_token
    additional_special_tokens raise_exception strftime_now tojson namespace dict range lipsum cycler joiner
    self loop caller varargs kwargs context environment""".split()
)


def check_template_kwargs(kwargs: Mapping[str, object]) -> None:
    """Raises InvalidValue (param chat_template_kwargs) for reserved names and for values past the bounds."""
    for name in kwargs:
        if not isinstance(name, str) or name in RESERVED or name.startswith("_") or not name.isidentifier():
            shown = ascii(name)[:64]
            raise InvalidValue(f"chat_template_kwargs must not set {shown}.", param=PARAM)
    _check_nodes(kwargs)
    try:
        size = len(msgspec.json.encode(kwargs))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue("chat_template_kwargs holds a value that is not JSON.", param=PARAM) from error
    if size > MAX_BYTES:
        raise InvalidValue(f"chat_template_kwargs is larger than {MAX_BYTES >> 10} KiB.", param=PARAM)


def _check_nodes(kwargs: Mapping[str, object]) -> None:
    waiting: list[tuple[object, int]] = [(kwargs, 0)]
    nodes = 0
    while waiting:
        value, depth = waiting.pop()
        nodes += 1
        if depth > MAX_DEPTH:
            raise InvalidValue(f"chat_template_kwargs is nested deeper than {MAX_DEPTH}.", param=PARAM)
        if nodes > MAX_NODES + 1:
            raise InvalidValue(f"chat_template_kwargs holds more than {MAX_NODES} values.", param=PARAM)
        if isinstance(value, Mapping):
            waiting.extend((item, depth + 1) for item in value.values())
        elif isinstance(value, list | tuple):
            waiting.extend((item, depth + 1) for item in value)
