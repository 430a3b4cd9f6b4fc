"""Reads a TOML file and the environment into a settings struct. Knows no setting by name; used once, at start."""

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from neuron.runtime.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

MAX_FILE_BYTES = 1024 * 1024
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>.*?)`(?: - at `(?P<at>.*)`)?", re.DOTALL)


def load_settings(
    settings: type[T],
    path: Path | None,
    environment: Mapping[str, str],
    env_map: Mapping[str, str],
    *,
    reserved: Collection[str] = (),
) -> T:
    """Settings from defaults, then the file at `path` (None: no file), then the environment.

    `env_map` names, for each variable, the dotted key that it sets ("NEURON_PORT": "server.port"); an empty value
    counts as unset. `reserved` are dotted keys that a file may not set. Raises ConfigError with one line that names the
    file or variable and the key.
    """
    tree: dict[str, Any] = {} if path is None else _read(path)
    for dotted in reserved:
        if _get(tree, dotted.split(".")) is not None:
            raise ConfigError(f"{path}: unknown key '{dotted}'.")
    # The file alone first, so that an error is blamed on the right source.
    if path is not None:
        _convert(settings, tree, str(path))
    for variable, dotted in env_map.items():
        text = environment.get(variable, "").strip()
        if text:
            _put(tree, dotted.split("."), _parse(settings, variable, dotted, text))
    return _convert(settings, tree, str(path) if path is not None else "environment")


def _read(path: Path) -> dict[str, Any]:
    try:
        # A FIFO in place of the file would block the start for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError(f"{path}: not a regular file.")
            with open(fd, "rb", closefd=False) as file:
                raw = file.read(MAX_FILE_BYTES + 1)
        finally:
            os.close(fd)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from error
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: longer than {MAX_FILE_BYTES} bytes.")
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {_one_line(str(error))}.") from error


def _convert(settings: type[T], tree: dict[str, Any], source: str) -> T:
    try:
        return msgspec.convert(tree, settings, dec_hook=_decode_extra)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_explain(settings, str(error))}.") from error


def _explain(settings: type[msgspec.Struct], text: str) -> str:
    match = _UNKNOWN.fullmatch(text)
    if match is None:
        what, _, where = text.partition(" - at `$.")
        return _one_line(f"{where.rstrip('`')}: {what}" if where else what)
    section = (match["at"] or "$").removeprefix("$").removeprefix(".")
    key = f"{section}.{match['key']}" if section else match["key"]
    near = difflib.get_close_matches(match["key"], _fields_at(settings, section), 1)
    return _one_line(f"unknown key '{key}'" + (f" (did you mean '{near[0]}'?)" if near else ""))


def _fields_at(settings: type[msgspec.Struct], section: str) -> tuple[str, ...]:
    found: Any = settings
    for name in section.split(".") if section else ():
        found = get_type_hints(found).get(name) if _is_struct(found) else None
    return tuple(found.__struct_fields__) if _is_struct(found) else ()


def _is_struct(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, msgspec.Struct)


def _parse(settings: type[msgspec.Struct], variable: str, dotted: str, text: str) -> Any:
    """A variable's text as the builtin value of its field's type."""
    found: Any = settings
    for name in dotted.split("."):
        hints = get_type_hints(found) if _is_struct(found) else {}
        if name not in hints:
            raise KeyError(f"{variable} is mapped to {dotted}, which is no setting")
        found = hints[name]
    try:
        value = msgspec.convert(text, found, strict=False, dec_hook=_decode_extra)
    except msgspec.ValidationError as error:
        raise ConfigError(f"environment variable {variable}: {_one_line(str(error))}.") from error
    return msgspec.to_builtins(value, enc_hook=str)


def _decode_extra(wanted: type, value: Any) -> Any:
    if wanted is Path:
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError("Expected a path")
        return Path(value).expanduser()
    raise TypeError(f"settings of type {wanted} are not supported")


def _get(tree: dict[str, Any], keys: list[str]) -> Any:
    found: Any = tree
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _put(tree: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
    tree[keys[-1]] = value


def _one_line(text: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable[:300].rstrip(".")
