"""Small pieces of JSON schema that the OpenAPI document is put together from."""

from typing import Any

Json = dict[str, Any]
REF = "#/components/schemas/{name}"

TEXT: Json = {"type": "string"}
WHOLE: Json = {"type": "integer"}
NUMBER: Json = {"type": "number"}
FLAG: Json = {"type": "boolean"}
NULL: Json = {"type": "null"}
ANY_OBJECT: Json = {"type": "object"}


def ref(name: str) -> Json:
    return {"$ref": REF.format(name=name)}


def nullable(kind: str) -> Json:
    return {"type": [kind, "null"]}


def any_of(*schemas: Json) -> Json:
    return {"anyOf": list(schemas)}


def optional(schema: Json) -> Json:
    return any_of(schema, NULL)


def items(schema: Json, **bounds: int) -> Json:
    return {"type": "array", "items": schema, **bounds}


def either(*values: object) -> Json:
    return {"enum": list(values)}


def record(required: Json, /, **more: Json) -> Json:
    """An object: every key of `required` is always there, those of `more` may be missing."""
    return {"type": "object", "properties": {**required, **more}, "required": list(required)}
