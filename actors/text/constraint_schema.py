"""What a JSON schema must be before it is made a grammar: small, shallow, of values that end. For the grammar only."""

import json
from collections.abc import Iterator
from typing import Any

from neuron.actors.errors import InvalidValue

MAX_SCHEMA_BYTES = 256 * 1024
MAX_SCHEMA_DEPTH = 64
#: Looks at all parts of a schema that has references.
MAX_ROUNDS = 16
#: Keywords whose values are data, not schemas.
DATA = frozenset({"enum", "const", "default", "examples"})


def check_schema(schema: dict[str, Any], param: str) -> None:
    """Raises InvalidValue beyond 256 KiB of JSON or 64 levels, and for one that refers to itself without an end."""
    if _too_deep(schema):
        raise InvalidValue(f"The JSON schema is nested more than {MAX_SCHEMA_DEPTH} levels deep.", param=param)
    text = json.dumps(schema)
    if len(text) > MAX_SCHEMA_BYTES:
        raise InvalidValue(f"The JSON schema is larger than {MAX_SCHEMA_BYTES // 1024} KiB.", param=param)
    if '"$ref"' in text and _endless(schema):
        raise InvalidValue("The JSON schema refers to itself without an end: no value can satisfy it.", param=param)


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_SCHEMA_DEPTH + 1):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


def _endless(root: dict[str, Any]) -> bool:
    """Whether some part of the schema has no finite value, or one behind too many references to look for."""
    left = list(_parts(root))
    ended: set[int] = set()
    for _ in range(MAX_ROUNDS):
        before = len(left)
        still = []
        for part in reversed(left):  # The other way each time: whole chains of references end in one round.
            if _ends(part, root, ended):
                ended.add(id(part))
            else:
                still.append(part)
        left = still
        if not left or len(left) == before:
            break
    return bool(left)


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in it, schemas and mappings of schemas alike."""
    if isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            if key not in DATA:
                yield from _parts(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _parts(value)


def _ends(part: dict[str, Any], root: dict[str, Any], ended: set[int]) -> bool:
    """A finite value is known for `part`, given those known so far. Pointers that lead nowhere are not judged here."""

    def known(schema: Any) -> bool:
        return not isinstance(schema, dict) or id(schema) in ended

    needed: list[Any] = []
    reference = part.get("$ref")
    if isinstance(reference, str):
        needed.append(_target(reference, root))
    all_of, properties, required = part.get("allOf"), part.get("properties"), part.get("required")
    if isinstance(all_of, list):
        needed += all_of
    if isinstance(properties, dict) and isinstance(required, list):
        needed += [properties.get(key) for key in required if isinstance(key, str)]
    if isinstance(part.get("minItems"), int) and part["minItems"] > 0 and "prefixItems" not in part:
        needed.append(part.get("items"))
    choices = [part[key] for key in ("anyOf", "oneOf") if isinstance(part.get(key), list) and part[key]]
    return all(known(schema) for schema in needed) and all(any(map(known, some)) for some in choices)


def _target(reference: str, root: dict[str, Any]) -> Any:
    """What a local JSON pointer names; None for others, and for one that leads nowhere."""
    if not reference.startswith("#"):
        return None
    found: Any = root
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found
