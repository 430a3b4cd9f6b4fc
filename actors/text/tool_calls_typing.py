"""Values of the XML call form, typed by the tool's JSON schema; strict JSON in and out. Nothing here raises."""

import json
import math
import re
from typing import Any

#: A schema may refer to itself; no more steps than this are followed.
MAX_STEPS = 32
_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS = ("string", "integer", "number", "boolean", "null", "object", "array")
_MISSING = object()


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _finite_number(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def load_json(text: str) -> Any:
    """The value of JSON text (raw control characters in strings allowed), None where it is null, or nothing that JSON
    can say again: a number beyond a double is none.
    """
    value = _decode(text)
    return None if value is _MISSING else value


def _decode(text: str) -> Any:
    try:
        return json.loads(text, strict=False, parse_constant=_refuse, parse_float=_finite_number)
    except (ValueError, RecursionError):
        return _MISSING


def dump_arguments(arguments: dict[str, Any]) -> str | None:
    """JSON text that encodes to UTF-8 (a lone surrogate becomes U+FFFD); None for what JSON cannot say."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return _SURROGATE.sub("\ufffd", text)


def typed_value(text: str, schema: Any, root: Any) -> Any:
    """`text` as the schema wants it; the text itself where it does not fit. Without a schema JSON text is decoded.

    Of several allowed types null, object and array win where the text is one of those, then the first that fits.
    """
    kinds = allowed_kinds(schema, root)
    if not kinds:
        return _sniffed(text)
    stripped = text.strip()
    if "null" in kinds and stripped in ("null", "None"):
        return None
    for kind, opening in (("object", "{"), ("array", "[")):
        if kind in kinds and stripped.startswith(opening):
            value = _of_kind(kind, stripped)
            if value is not _MISSING:
                return value
    for kind in kinds:
        if kind == "string":
            return text
        value = _of_kind(kind, stripped)
        if value is not _MISSING:
            return value
    return text


def _sniffed(text: str) -> Any:
    stripped = text.strip()
    if stripped in ("True", "False"):
        return stripped == "True"
    value = _decode(stripped)
    return text if value is _MISSING or isinstance(value, str) else value


def _of_kind(kind: str, text: str) -> Any:
    if kind == "boolean":
        lowered = text.lower()
        return lowered == "true" if lowered in ("true", "false") else _MISSING
    value = _decode(text)
    if value is _MISSING or isinstance(value, bool):
        return _MISSING
    if kind == "integer":
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        return value if isinstance(value, int) else _MISSING
    wanted: dict[str, Any] = {"number": (int, float), "object": dict, "array": list}
    return value if kind in wanted and isinstance(value, wanted[kind]) else _MISSING


def properties_of(root: Any) -> tuple[dict[str, Any], Any]:
    """What a tool's schema says of its arguments by name, and of all others (None: nothing).

    Looked for also behind `$ref`, allOf, anyOf and oneOf at the top; of two that name the same one the first counts.
    """
    known: dict[str, Any] = {}
    others: Any = None
    pending, steps = [root], 0
    while pending and steps < MAX_STEPS:
        schema = pending.pop(0)
        steps += 1
        if not isinstance(schema, dict):
            continue
        properties = schema.get("properties")
        if isinstance(properties, dict):
            known = {**properties, **known}
        if others is None and isinstance(schema.get("additionalProperties"), dict):
            others = schema["additionalProperties"]
        if isinstance(schema.get("$ref"), str):
            pending.append(_resolve(schema["$ref"], root))
        for key in ("allOf", "anyOf", "oneOf"):
            branches = schema.get(key)
            pending.extend(branches if isinstance(branches, list) else ())
    return known, others


def allowed_kinds(schema: Any, root: Any) -> tuple[str, ...]:
    """JSON types a schema allows, in its own order; () where it does not say. `$ref`s into `root` are followed."""
    found: dict[str, None] = {}
    steps = [0]
    _collect(schema, root, found, steps)
    return tuple(found)


def _collect(schema: Any, root: Any, found: dict[str, None], steps: list[int]) -> None:
    steps[0] += 1
    if steps[0] > MAX_STEPS or not isinstance(schema, dict):
        return
    kind = schema.get("type")
    for name in kind if isinstance(kind, list) else [kind]:
        if isinstance(name, str) and name in _KINDS:
            found[name] = None
    reference = schema.get("$ref")
    if isinstance(reference, str):
        _collect(_resolve(reference, root), root, found, steps)
    for key in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(key)
        for branch in branches if isinstance(branches, list) else ():
            _collect(branch, root, found, steps)
    if kind is None:
        values = schema.get("enum")
        for value in values if isinstance(values, list) else [schema["const"]] if "const" in schema else ():
            found[_kind_of(value)] = None


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, python in (("string", str), ("integer", int), ("number", float), ("object", dict)):
        if isinstance(value, python):
            return kind
    return "array"


def _resolve(reference: str, root: Any) -> Any:
    """A local JSON pointer; None for anything else."""
    if not reference.startswith("#"):
        return None
    value = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value
