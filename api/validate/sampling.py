"""Fields that both front doors share: sampling, stop strings, thinking, response format, unsupported keys."""

from typing import Any

from neuron.actors import limits
from neuron.actors.errors import InvalidValue, UnsupportedParameter
from neuron.actors.request import ResponseFormat, SamplingParams, Thinking
from neuron.api.validate.ranges import BIAS, SAMPLING
from neuron.api.validate.reader import Reader, as_object, json_bytes

#: Names that the daemon itself gives to a chat template; a request may not replace them.
RESERVED_TEMPLATE_NAMES = frozenset(
    "messages tools documents conversation conversations chat_template tokenize add_generation_prompt "
    "continue_final_message padding truncation max_length return_tensors return_dict bos_token eos_token "
    "raise_exception strftime_now".split()
)
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def refuse_unsupported(reader: Reader, table: dict[str, tuple[object, ...]]) -> None:
    """Raises UnsupportedParameter for the first key that asks for what the daemon cannot do."""
    for key, neutral in table.items():
        value = reader.get(key)
        if value is None or any(_same(value, harmless) for harmless in neutral):
            continue
        raise UnsupportedParameter(f"'{key}' is not supported by this server.", param=key)


def _same(value: object, other: object) -> bool:
    """Equality that does not take False for 0."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def read_sampling(reader: Reader) -> SamplingParams:
    integers = {key: reader.integer(key, bounds) for key, bounds in SAMPLING.items() if bounds.integer}
    numbers = {key: reader.number(key, bounds) for key, bounds in SAMPLING.items() if not bounds.integer}
    top_k = integers["top_k"]
    return SamplingParams(
        temperature=numbers["temperature"],
        top_p=numbers["top_p"],
        top_k=None if top_k is None else max(0, top_k),
        min_p=numbers["min_p"],
        seed=integers["seed"],
        presence_penalty=numbers["presence_penalty"],
        frequency_penalty=numbers["frequency_penalty"],
        repetition_penalty=numbers["repetition_penalty"],
        repeat_last_n=integers["repeat_last_n"],
        logit_bias=_logit_bias(reader),
    )


def _logit_bias(reader: Reader) -> tuple[tuple[int, float], ...]:
    bias = reader.object("logit_bias")
    if not bias:
        return ()
    if len(bias) > limits.LOGIT_BIAS_ENTRIES.value:
        raise InvalidValue(
            f"'logit_bias' must have at most {limits.LOGIT_BIAS_ENTRIES.value} entries.", param="logit_bias"
        )
    entries: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise InvalidValue("The keys of 'logit_bias' must be token ids.", param="logit_bias")
        entries[int(key)] = float(BIAS.read(value, f"logit_bias.{key}"))
    return tuple(entries.items())


def read_stop(reader: Reader) -> tuple[str, ...]:
    """`stop`, or its alias `stop_sequences` when `stop` is absent."""
    key = "stop" if reader.get("stop") is not None else "stop_sequences"
    value = reader.get(key)
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else reader.list(key, max_items=limits.STOP_STRINGS.value) or []
    for index, text in enumerate(strings):
        param = key if isinstance(value, str) else f"{key}[{index}]"
        if not isinstance(text, str) or not text:
            raise InvalidValue(f"'{param}' must be a string that is not empty.", param=param)
        if len(text.encode("utf-8")) > limits.STOP_BYTES.value:
            raise InvalidValue(f"'{param}' must be at most {limits.STOP_BYTES.value} bytes long.", param=param)
    return tuple(dict.fromkeys(strings))


def read_template_kwargs(reader: Reader) -> dict[str, Any]:
    key = "chat_template_kwargs"
    kwargs = reader.object(key)
    if not kwargs:
        return {}
    for name in kwargs:
        if name in RESERVED_TEMPLATE_NAMES or not name.isidentifier() or name.startswith("_"):
            param = f"{key}.{name[:64]}"
            raise InvalidValue(f"'{param}' is reserved and cannot be set by a request.", param=param)
    nodes, depth = _measure(kwargs)
    if depth > limits.TEMPLATE_KWARGS_DEPTH.value or nodes > limits.TEMPLATE_KWARGS_NODES.value:
        raise InvalidValue(
            f"'{key}' must hold at most {limits.TEMPLATE_KWARGS_NODES.value} values in at most "
            f"{limits.TEMPLATE_KWARGS_DEPTH.value} levels.",
            param=key,
        )
    if json_bytes(kwargs) > limits.TEMPLATE_KWARGS_BYTES.value:
        raise InvalidValue(f"'{key}' must be at most {limits.TEMPLATE_KWARGS_BYTES.value} bytes of JSON.", param=key)
    return kwargs


def _measure(root: Any) -> tuple[int, int]:
    """Number of values below `root` and levels of nesting."""
    nodes, deepest = 0, 0
    pending = [(root, 1)]
    while pending:
        value, depth = pending.pop()
        deepest = max(deepest, depth)
        if isinstance(value, dict | list):
            inner = list(value.values()) if isinstance(value, dict) else value
            nodes += len(inner)
            pending.extend((item, depth + 1) for item in inner)
    return nodes, deepest


def read_thinking(reader: Reader, effort: str | None, kwargs: dict[str, Any]) -> Thinking:
    """Later ones win: reasoning_effort none, `thinking`, `enable_thinking`, chat_template_kwargs.enable_thinking."""
    thinking = Thinking.OFF if effort == "none" else Thinking.DEFAULT
    block = reader.object("thinking")
    if block is not None:
        kind = Reader(block, "thinking").choice("type", ("enabled", "disabled", "adaptive", "auto"))
        thinking = {"enabled": Thinking.ON, "disabled": Thinking.OFF}.get(kind or "", thinking)
    for holder in (reader, Reader(kwargs, "chat_template_kwargs")):
        enabled = holder.boolean("enable_thinking")
        if enabled is not None:
            thinking = Thinking.ON if enabled else Thinking.OFF
    return thinking


def read_response_format(form: dict[str, Any] | None, param: str) -> ResponseFormat:
    """The chat form ({type, json_schema: {schema}}) and the Responses form ({type, name, schema})."""
    if form is None:
        return ResponseFormat()
    reader = Reader(form, param)
    kind = reader.choice("type", ("text", "json_object", "json_schema"))
    if kind is None:
        if form:
            raise InvalidValue(f"'{reader.at('type')}' is missing.", param=reader.at("type"))
        return ResponseFormat()
    if kind != "json_schema":
        return ResponseFormat(kind=kind)
    nested = reader.object("json_schema")
    inner = reader if nested is None else Reader(nested, f"{param}.json_schema")
    schema = inner.get("schema")
    if schema is None:
        raise InvalidValue(f"'{inner.at('schema')}' is missing.", param=inner.at("schema"))
    schema = as_object(schema, inner.at("schema"))
    if json_bytes(schema) > limits.SCHEMA_BYTES.value:
        raise InvalidValue(
            f"'{inner.at('schema')}' must be at most {limits.SCHEMA_BYTES.value} bytes of JSON.",
            param=inner.at("schema"),
        )
    return ResponseFormat(kind=kind, schema=schema)


def read_effort(reader: Reader, key: str = "reasoning_effort") -> str | None:
    return reader.choice(key, EFFORTS)
