"""Typed reading of one JSON object. null always means absent; a refusal names the place as clients write it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from neuron.actors.errors import InvalidValue


class Number(msgspec.Struct, frozen=True):
    """Inclusive bounds, but `above` excludes the lower one. `integer` also takes 5.0, which JSON cannot tell from 5."""

    low: float
    high: float
    integer: bool = False
    above: bool = False

    def read(self, value: Any, param: str) -> float:
        kind = "an integer" if self.integer else "a number"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidValue(f"'{param}' must be {kind}.", param=param)
        if self.integer and isinstance(value, float):
            if not value.is_integer():
                raise InvalidValue(f"'{param}' must be an integer.", param=param)
            value = int(value)
        if not self.low <= value <= self.high or (self.above and value == self.low):
            lower = "above" if self.above else "at least"
            raise InvalidValue(
                f"'{param}' must be {kind} of {lower} {_plain(self.low)} and at most {_plain(self.high)}.", param=param
            )
        number: float = value
        return number

    def schema(self) -> dict[str, Any]:
        low = "exclusiveMinimum" if self.above else "minimum"
        kind = "integer" if self.integer else "number"
        return {"type": [kind, "null"], low: _plain(self.low), "maximum": _plain(self.high)}


class Reader:
    """Reads the keys of `body`; `prefix` is the path to it ("messages[3]")."""

    def __init__(self, body: Mapping[str, Any], prefix: str = "") -> None:
        self._body = body
        self.prefix = prefix

    def at(self, key: str) -> str:
        return f"{self.prefix}.{key}" if self.prefix else key

    def get(self, key: str) -> Any:
        return self._body.get(key)

    def number(self, key: str, bounds: Number) -> float | None:
        value = self._body.get(key)
        return None if value is None else bounds.read(value, self.at(key))

    def integer(self, key: str, bounds: Number) -> int | None:
        value = self.number(key, bounds)
        return None if value is None else int(value)

    def boolean(self, key: str) -> bool | None:
        value = self._body.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise InvalidValue(f"'{self.at(key)}' must be true or false.", param=self.at(key))

    def string(self, key: str, *, max_chars: int | None = None) -> str | None:
        value = self._body.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise InvalidValue(f"'{self.at(key)}' must be a string.", param=self.at(key))
        if max_chars is not None and len(value) > max_chars:
            raise InvalidValue(f"'{self.at(key)}' must be at most {max_chars} characters long.", param=self.at(key))
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str | None:
        value = self.string(key)
        if value is not None and value not in choices:
            raise InvalidValue(f"'{self.at(key)}' must be one of: {', '.join(choices)}.", param=self.at(key))
        return value

    def list(self, key: str, *, max_items: int | None = None) -> list[Any] | None:
        value = self._body.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise InvalidValue(f"'{self.at(key)}' must be a list.", param=self.at(key))
        if max_items is not None and len(value) > max_items:
            raise InvalidValue(f"'{self.at(key)}' must have at most {max_items} entries.", param=self.at(key))
        return value

    def object(self, key: str) -> dict[str, Any] | None:
        value = self._body.get(key)
        if value is None:
            return None
        return as_object(value, self.at(key))


def as_object(value: Any, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValue(f"'{param}' must be an object.", param=param)
    return value


def json_bytes(value: Any) -> int:
    """Size of a decoded JSON value when written compactly."""
    return len(msgspec.json.encode(value))


def _plain(value: float) -> float:
    return int(value) if float(value).is_integer() else value
