"""The log events of the daemon, read from its own calls: name, level and keys. Used by the reference documents."""

import ast
from collections.abc import Iterable
from pathlib import Path

import msgspec

from neuron.actors.account import Account
from neuron.actors.events import Timings, Usage

ROOT = Path(__file__).parents[1]
FOLDERS = ("actors", "api", "runtime")
_LEVELS = ("trace", "debug", "info", "warning", "error", "critical", "exception")
_LOGGERS = ("log", "_log")


class LogEvent(msgspec.Struct, frozen=True):
    name: str
    level: str
    keys: tuple[str, ...]


def events(root: Path = ROOT) -> list[LogEvent]:
    """By name; an event that is logged in several places has the keys of all."""
    found: dict[tuple[str, str], set[str]] = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            for event in _calls(ast.parse(path.read_text(encoding="utf-8"))):
                found.setdefault((event.name, event.level), set()).update(event.keys)
    return [LogEvent(name, level, tuple(sorted(keys))) for (name, level), keys in sorted(found.items())]


def _calls(tree: ast.AST) -> Iterable[LogEvent]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        first, level = node.args[0], _level(node.func)
        if level is None or not (isinstance(first, ast.Constant) and isinstance(first.value, str)):
            continue
        keys = {word.arg for word in node.keywords if word.arg is not None and word.arg != "exc_info"}
        if any(isinstance(word.value, ast.Name) and word.value.id == "line" for word in node.keywords if not word.arg):
            keys |= set(_account_keys())
        yield LogEvent(first.value, level, tuple(sorted(keys)))


def _account_keys() -> Iterable[str]:
    """What every terminal line of a request carries (`**line`)."""
    usage, timings = Usage(0, 0), Timings(0.0, 0.0, 0.0, 0, 0)
    return Account("", "", 0.0).line(usage, timings)


def _level(function: ast.expr) -> str | None:
    """The level of a log call; None for any other. `write` is what code names a level chosen by the error's status."""
    if isinstance(function, ast.Name):
        return "info or warning" if function.id == "write" else None
    if not isinstance(function, ast.Attribute) or not _is_logger(function):
        return None
    return "error" if function.attr == "exception" else function.attr


def _is_logger(function: ast.Attribute) -> bool:
    """`log.info`, `_log.info`, `self._log.info`."""
    owner = function.value
    name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    return function.attr in _LEVELS and name in _LOGGERS
