"""JSON schemas of rising difficulty, as clients of structured output send them."""

from typing import Any

STRING = {"type": "string"}
INTEGER = {"type": "integer"}


def record(required: list[str] | None = None, /, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


TREE: dict[str, Any] = {
    **record(value=INTEGER, children={"type": "array", "items": {"$ref": "#"}, "maxItems": 1}),
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "true": {"const": True},
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": INTEGER,
    "number": {"type": "number"},
    "string": STRING,
    "short string": {"type": "string", "minLength": 2, "maxLength": 6},
    "enum": {"enum": ["red", "green", 3, None, {"a": [1]}]},
    "bounded integer": {"type": "integer", "minimum": -3, "maximum": 17},
    "64-bit integer": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "64-bit integer from one side": {"type": "integer", "exclusiveMinimum": -(2**63)},
    "double": {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
    "unsigned by name": {"type": "object", "properties": {"maximum": {"type": "integer", "maximum": 1e19}}},
    "exclusive bounds": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "pattern": {"type": "string", "pattern": "^[a-c]{2,4}-[0-9]+$"},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    "list": {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [INTEGER, STRING], "minItems": 2, "items": False},
    "nullable": {"type": ["string", "null"]},
    "union": {"anyOf": [INTEGER, {"type": "array", "items": STRING, "maxItems": 2}]},
    "empty object": record(),
    "flat object": record(name=STRING, age=INTEGER, admin={"type": "boolean"}),
    "optional keys": record(["a"], a=INTEGER, b=STRING, c={"type": "null"}),
    "open object": {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
    "mapping": {"type": "object", "additionalProperties": INTEGER},
    "pattern keys": {"type": "object", "patternProperties": {"^k[0-9]$": INTEGER}, "additionalProperties": False},
    "nested": record(person=record(name=STRING, address=record(street=STRING, zip=INTEGER))),
    "list of objects": {
        "type": "array",
        "items": record(id=INTEGER, tags={"type": "array", "items": STRING}),
        "maxItems": 2,
    },
    "defs": {**record(a={"$ref": "#/$defs/P"}, b={"$ref": "#/$defs/P"}), "$defs": {"P": record(x=INTEGER)}},
    "recursive": TREE,
    "tagged union": {
        "anyOf": [
            record(kind={"const": "circle"}, radius={"type": "number"}),
            record(kind={"const": "square"}, side={"type": "number"}),
        ]
    },
    "one of": {"oneOf": [record(kind={"const": "a"}, n=INTEGER), record(kind={"const": "b"}, s=STRING)]},
    "all of": {
        "allOf": [{"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}, {"properties": {"b": STRING}}]
    },
    "unicode keys": record(**{"naïve key": STRING, "\U0001f98a": INTEGER, 'q"uote': {"type": "boolean"}}),
    "deep": record(
        a=record(b=record(c=record(d=record(e={"type": "array", "items": record(f=INTEGER), "maxItems": 1}))))
    ),
}

EXPRESSION: dict[str, Any] = {
    "$ref": "#/$defs/Node",
    "$defs": {
        "Node": {
            "anyOf": [
                record(op={"enum": ["add", "mul"]}, left={"$ref": "#/$defs/Node"}, right={"$ref": "#/$defs/Node"}),
                record(value={"type": "number"}),
            ]
        }
    },
}
#: Schemas that let an answer run on for ever: open strings, lists, maps and recursion.
OPEN: dict[str, dict[str, Any]] = {
    "essay": record(title=STRING, body=STRING),
    "two numbers": record(pi={"type": "number"}, e={"type": "number"}),
    "open list": record(words={"type": "array", "items": STRING}),
    "open map": record(capitals={"type": "object", "additionalProperties": STRING}),
    "any object": {"type": "object"},
    "matrix": record(rows={"type": "array", "items": {"type": "array", "items": {"type": "number"}}}),
    "long minimum": record(
        text={"type": "string", "minLength": 40}, n={"type": "array", "items": INTEGER, "minItems": 8}
    ),
    "people": record(
        people={
            "type": "array",
            "items": record(["name", "age"], name=STRING, bio=STRING, age=INTEGER, email={"type": ["string", "null"]}),
        }
    ),
    "form": record(**{f"field_{index}": STRING for index in range(12)}),
    "tree": record(["value"], children={"type": "array", "items": {"$ref": "#"}}, value=STRING),
    "linked list": {**record(["tail", "head"], tail={"anyOf": [{"$ref": "#"}, {"type": "null"}]}, head=STRING)},
    "expression": EXPRESSION,
    "comments": record(
        thread={"$ref": "#/$defs/C"},
    )
    | {"$defs": {"C": record(["text"], replies={"type": "array", "items": {"$ref": "#/$defs/C"}}, text=STRING)}},
    "events": record(
        events={
            "type": "array",
            "minItems": 1,
            "items": {
                "anyOf": [
                    record(type={"const": "text"}, text=STRING),
                    record(type={"const": "move"}, at={"type": "string", "format": "date-time"}, by={"type": "number"}),
                ]
            },
        }
    ),
}
