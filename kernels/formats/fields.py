"""Fields: checked access to an untrusted table of settings (config.json, GGUF metadata). Bounds live here once."""

import json
import math
from collections.abc import Mapping
from typing import Any

from neuron.kernels.formats.errors import FormatError, FormatKind, shown

MAX_LAYERS = 1024
MAX_HIDDEN = 1 << 17
MAX_INTERMEDIATE = 1 << 20
MAX_HEADS = 1024
MAX_HEAD_DIM = 1024
MAX_VOCAB = 1 << 22
MAX_POSITION = 1 << 27
MAX_EOS = 64
#: A base of rotary frequencies is above 1, and factors that divide them are above 0: their logarithms and quotients are
#: numbers.
MIN_THETA, MAX_THETA = 1.01, 1e12
MIN_TURNS, MAX_TURNS = 1e-3, 1e4

_MISSING: Any = object()


class JsonFault(ValueError):
    """The text is not one JSON object without repeated keys; the message says what is wrong with it."""


def decode_object(text: bytes, limit: int) -> dict[str, Any]:
    """`text` as a JSON object. Raises JsonFault: over `limit` bytes, not JSON, a key twice, NaN, nested too deep."""
    if len(text) > limit:
        raise JsonFault(f"is larger than {limit} bytes")
    try:
        table = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except JsonFault:
        raise
    except (ValueError, RecursionError) as error:
        raise JsonFault("is not valid JSON") from error
    if not isinstance(table, dict):
        raise JsonFault("is not a JSON object")
    return table


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonFault(f"holds the key {shown(key)} twice")
            seen.add(key)
    return table


def _no_constant(name: str) -> float:
    raise JsonFault(f"holds {name}")


class Fields:
    """A table whose entries are read with their type and range checked; null counts as absent.

    `where` names the table in messages. Every method raises FormatError of `kind`.
    """

    def __init__(
        self, table: Mapping[str, Any], where: str, kind: FormatKind = FormatKind.INVALID_CONFIG, prefix: str = ""
    ) -> None:
        self._table = table
        self._where = where
        self._kind = kind
        self._prefix = prefix

    def has(self, key: str) -> bool:
        return self._table.get(self._prefix + key) is not None

    def raw(self, key: str) -> Any:
        return self._table.get(self._prefix + key)

    def fault(self, message: str) -> FormatError:
        return FormatError(self._kind, f"{self._where}: {message}")

    def _get(self, key: str, default: Any) -> Any:
        value = self._table.get(self._prefix + key)
        if value is not None:
            return value
        if default is _MISSING:
            raise self.fault(f"{self._prefix}{key} is missing.")
        return default

    def integer(self, key: str, low: int, high: int, default: int = _MISSING) -> int:
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise self.fault(f"{self._prefix}{key} must be an integer from {low} to {high}.")
        return value

    def number(self, key: str, low: float, high: float, default: float = _MISSING) -> float:
        value = self._get(key, default)
        if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
            raise self.fault(f"{self._prefix}{key} must be a number from {low:g} to {high:g}.")
        return float(value)

    def flag(self, key: str, default: bool = _MISSING) -> bool:
        value = self._get(key, default)
        if type(value) is not bool:
            raise self.fault(f"{self._prefix}{key} must be true or false.")
        return value

    def text(self, key: str, default: str = _MISSING) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.fault(f"{self._prefix}{key} must be text.")
        return value

    def table(self, key: str) -> dict[str, Any]:
        """The object under `key`; empty when absent."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self.fault(f"{self._prefix}{key} must be an object.")
        return value

    def integers(self, key: str, low: int, high: int, limit: int) -> tuple[int, ...]:
        """A list of integers, or one integer alone; empty when absent."""
        value = self._get(key, ())
        items = value if isinstance(value, (list, tuple)) else [value]
        if len(items) > limit or any(type(item) is not int or not low <= item <= high for item in items):
            raise self.fault(f"{self._prefix}{key} must hold up to {limit} integers from {low} to {high}.")
        return tuple(items)

    def same_integer(self, key: str, low: int, high: int, default: int = _MISSING) -> int:
        """An integer that some files repeat for each layer; zeros (layers without it) are passed over."""
        value = self._get(key, default)
        if isinstance(value, list):
            distinct = {item for item in value if item != 0}
            if len(distinct) != 1:
                raise FormatError(
                    FormatKind.UNSUPPORTED_MODEL, f"{self._where}: {self._prefix}{key} differs between layers."
                )
            value = distinct.pop()
        if type(value) is not int or not low <= value <= high:
            raise self.fault(f"{self._prefix}{key} must be an integer from {low} to {high}.")
        return value


def unsupported(where: str, message: str) -> FormatError:
    """The model is well described, and needs something that is not built."""
    return FormatError(FormatKind.UNSUPPORTED_MODEL, f"{where}: {message}")


def check_heads(fields: Fields, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    if num_heads % num_kv_heads:
        raise fields.fault(f"{num_heads} query heads are no multiple of {num_kv_heads} key-value heads.")
    if head_dim % 2:
        raise fields.fault(f"a head dimension of {head_dim} cannot be rotated in pairs.")


def check_rotary(fields: Fields, rotary_dim: int, head_dim: int, section: tuple[int, int, int] | None) -> None:
    """The rotary width is even and inside the head; its pairs are just those that M-RoPE's sections share out."""
    if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > head_dim:
        raise fields.fault(f"a rotary width of {rotary_dim} does not fit a head of {head_dim}.")
    if section is not None and 2 * sum(section) != rotary_dim:
        raise fields.fault(f"mrope_section {list(section)} does not add up to half the rotary width of {rotary_dim}.")
