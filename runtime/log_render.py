"""Turns one log event into one line. No event, however odd, makes two lines, a control character or an exception."""

import json
import re
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

Event = dict[str, Any]

_MAX_TEXT = 16 * 1024
"""Longest single string kept, in characters; tracebacks keep their end, where the cause is."""
MAX_JSON_BYTES = 48 * 1024
_FIRST = ("timestamp", "level", "event", "logger")
_DEPTH = 6


def render_json(event: Event) -> bytes:
    """One JSON object, ASCII only: control characters, ESC, line separators and lone surrogates are all escaped."""
    ordered = _prepare(event)
    line = json.dumps(ordered, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    if len(line) > MAX_JSON_BYTES:
        short = {key: value if len(str(value)) <= 200 else str(value)[:200] + "..." for key, value in ordered.items()}
        line = json.dumps(dict(list(short.items())[:40]) | {"shortened": True}, ensure_ascii=True)
    return line.encode("ascii")


def render_console(event: Event, *, colours: bool) -> bytes:
    """Text for a terminal: `time level event key=value ...`; a traceback follows with its lines indented."""
    ordered = _prepare(event)
    stamp, level = str(ordered.pop("timestamp", ""))[11:23], str(ordered.pop("level", ""))
    text, trace = str(ordered.pop("event", "")), ordered.pop("exception", None)
    shade = {"warning": "33", "error": "31", "critical": "31"}.get(level, "2") if colours else None
    marked = f"\x1b[{shade}m{level:<8}\x1b[0m" if shade else f"{level:<8}"
    pairs = " ".join(_printable(f"{key}={_plain(value)}") for key, value in ordered.items())
    line = f"{stamp} {marked} {_printable(text)}" + (f"  {pairs}" if pairs else "")
    if trace:
        line += "".join(f"\n    {_printable(each)}" for each in str(trace).splitlines())
    return line.encode("utf-8", "backslashreplace")


def revive(line: bytes) -> Event | None:
    """The event of a line that another process rendered as JSON; None when it is anything else."""
    if not line.startswith(b"{"):
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(event, dict) and isinstance(event.get("event"), str) and isinstance(event.get("level"), str):
        return event
    return None


def _prepare(event: Event) -> Event:
    event = dict(event)
    exc_info = event.pop("exc_info", None)
    if exc_info:
        event.update(_exception(exc_info))
    event.setdefault("timestamp", datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"))
    ordered = {key: event.pop(key) for key in _FIRST if key in event} | event
    return {str(key): _simple(value, _DEPTH) for key, value in ordered.items() if value is not None}


def _exception(exc_info: Any) -> Event:
    """`exception`: the traceback; `causes`: one line for each exception of the chain, first the outermost."""
    if isinstance(exc_info, tuple):
        error = exc_info[1]
    else:
        error = exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1]
    if error is None:
        return {}
    causes: list[str] = []
    link: BaseException | None = error
    while link is not None and len(causes) < 8:
        causes.append(f"{type(link).__name__}: {_text(link)}"[:500])
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:  # an exception whose own repr fails must not cost the line
        trace = ""
    return {"exception": trace[-_MAX_TEXT:], "causes": causes}


def _simple(value: Any, depth: int) -> Any:
    """`value` as something that JSON holds; never raises."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 2**63 else str(value)[:_MAX_TEXT] if value.bit_length() < 4096 else "huge"
    if isinstance(value, float):
        return float(value) if value - value == 0 else repr(value)
    if isinstance(value, str):
        text = str(value)
        if not text.isascii():
            # A lone surrogate would be escaped well enough, but strict readers refuse the whole line.
            text = text.encode("utf-8", "replace").decode("utf-8")
        return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "..."
    if depth > 0 and isinstance(value, dict):
        return {_text(key)[:200]: _simple(each, depth - 1) for key, each in list(value.items())[:200]}
    if depth > 0 and isinstance(value, (list, tuple, set, frozenset)):
        return [_simple(each, depth - 1) for each in list(value)[:200]]
    return _text(value)[:_MAX_TEXT]


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) and value and " " not in value else json.dumps(value, ensure_ascii=False)


_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
