"""Logging of every process: structlog events as one JSON object a line on stderr (or as text for a terminal).

Call `configure_logging` once, first thing in a process; take loggers with `get_logger`. Standard logging, warnings and
uncaught exceptions come out in the same form.
"""

import asyncio
import atexit
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import structlog

from neuron.runtime.errors import ConfigError
from neuron.runtime.levels import Level as Level
from neuron.runtime.levels import parse_level as parse_level
from neuron.runtime.log_render import Event, render_console, render_json, revive
from neuron.runtime.log_writer import LineWriter

#: Third-party loggers that say more than an operator wants below warnings.
_CHATTY = ("asyncio", "httpcore", "httpx", "numba", "PIL", "urllib3", "filelock", "hpack")


#: Lost lines are reported at most this often.
_REPORT_SECONDS = 10.0
#: A child's line that is no event is logged in pieces of this size.
_PIECE_BYTES = 8 * 1024


@dataclass(slots=True)
class _State:
    """What `configure_logging` sets for the whole process."""

    threshold: int = Level.WARNING
    console: bool = False
    colours: bool = False
    #: Keys on every event.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    writer: LineWriter | None = None
    reported_drops: int = 0
    next_report: float = 0.0


_state = _State()


def _emit(line: bytes) -> None:
    writer = _state.writer
    if writer is None:
        sys.stderr.write(line.decode("utf-8", "replace") + "\n")
        return
    if writer.dropped > _state.reported_drops and not writer.busy and time.monotonic() >= _state.next_report:
        _state.next_report = time.monotonic() + _REPORT_SECONDS
        lost, _state.reported_drops = writer.dropped - _state.reported_drops, writer.dropped
        report: Event = {"event": "log lines dropped", "logger": __name__, "lines": lost, "lines_total": writer.dropped}
        writer.write(_render("warning", report))
    writer.write(line)


def _render(level: str, event: Event) -> bytes:
    full: Event = {"level": level, **event, "pid": os.getpid(), **_state.fixed}
    return render_console(full, colours=_state.colours) if _state.console else render_json(full)


def _process(_sink: Any, level: str, event: Any) -> bytes:
    return _render(level, {**structlog.contextvars.get_contextvars(), **event})


class _Sink:
    """Where bound loggers deliver rendered lines."""

    def write(self, line: bytes) -> None:
        _emit(line)

    trace = debug = info = warning = error = critical = write


class Logger(structlog.BoundLoggerBase):
    """A bound logger; `bind(key=value)` gives one with more keys. Below the configured level a call does nothing."""

    def trace(self, event: str, **keys: Any) -> None:
        if _state.threshold <= Level.TRACE:
            self._proxy_to_logger("trace", event, **keys)

    def debug(self, event: str, **keys: Any) -> None:
        if _state.threshold <= Level.DEBUG:
            self._proxy_to_logger("debug", event, **keys)

    def info(self, event: str, **keys: Any) -> None:
        if _state.threshold <= Level.INFO:
            self._proxy_to_logger("info", event, **keys)

    def warning(self, event: str, **keys: Any) -> None:
        if _state.threshold <= Level.WARNING:
            self._proxy_to_logger("warning", event, **keys)

    def error(self, event: str, **keys: Any) -> None:
        if _state.threshold <= Level.ERROR:
            self._proxy_to_logger("error", event, **keys)

    def critical(self, event: str, **keys: Any) -> None:
        self._proxy_to_logger("critical", event, **keys)

    def exception(self, event: str, **keys: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        self.error(event, exc_info=keys.pop("exc_info", True), **keys)


def get_logger(name: str) -> Logger:
    """A logger whose events carry `logger: name`. May be called at import, before `configure_logging`."""
    return Logger(_Sink(), (_process,), {"logger": name})


def is_enabled(level: Level) -> bool:
    return _state.threshold <= level


def configure_logging(level: str, format: str = "json", *, device: str | None = None, fd: int = 2) -> None:
    """Set up logging for this process; `format` is "json" or "console", `device` marks a worker's events.

    Raises ConfigError for an unknown level or format. May be called again.
    """
    global _state
    threshold = parse_level(level)
    if format not in ("json", "console"):
        raise ConfigError(f"unknown log format '{format[:40]}' (json or console).")
    if _state.writer is None:
        atexit.register(flush_logs, 1.0)
    else:
        _state.writer.close(1.0)
    console = format == "console"
    _state = _State(
        threshold=threshold,
        console=console,
        colours=console and os.isatty(fd) and not os.environ.get("NO_COLOR"),
        fixed={} if device is None else {"device": device},
        writer=LineWriter(fd),
    )
    if threading.current_thread() is threading.main_thread():
        # A closed log pipe must be an error code of a write, never the end of the process.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    structlog.configure(
        processors=[_process],
        wrapper_class=Logger,
        logger_factory=lambda *_: _Sink(),
        cache_logger_on_first_use=False,
    )
    _route_standard_logging(threshold)
    _route_uncaught()


@contextmanager
def redirected(fd: int, level: str = "trace", format: str = "json") -> Iterator[None]:
    """For tests: log to `fd` within the block; everything that `configure_logging` changes is put back at its end."""
    global _state
    before, _state = _state, _State()
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in (None, *_CHATTY)}
    handlers, structlog_before = list(root.handlers), structlog.get_config()
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning
    try:
        configure_logging(level, format, fd=fd)
        yield
    finally:
        if _state.writer is not None:
            _state.writer.close(5.0)
        _state = before
        structlog.configure(**structlog_before)
        root.handlers[:] = handlers
        for name, old in levels.items():
            logging.getLogger(name).setLevel(old)
        sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning = hooks


def flush_logs(timeout_s: float = 1.0) -> None:
    """Wait, at most `timeout_s` seconds, until queued lines are out. For use just before os._exit."""
    if _state.writer is not None:
        _state.writer.flush(timeout_s)


def dropped_lines() -> int:
    """Log lines lost since the start because stderr was broken, full or too slow."""
    return 0 if _state.writer is None else _state.writer.dropped


def relay_child_line(line: bytes, **keys: Any) -> None:
    """Log a line of a child's stderr: JSON that `render_json` made as it is, anything else as an event with `keys`."""
    event = revive(line)
    if event is None:
        for start in range(0, len(line), _PIECE_BYTES):
            piece = line[start : start + _PIECE_BYTES].decode("utf-8", "replace")
            _log.warning("worker stderr", line=piece, **keys)
    elif _state.console:
        _emit(render_console(event, colours=_state.colours))
    else:
        _emit(line)


class _StandardHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception:
            text = str(record.msg)
        known = [each for each in Level if each <= record.levelno]
        level = (known[-1] if known else Level.TRACE).name.lower()
        event: Event = {"event": text, "logger": record.name}
        if record.exc_info:
            event["exc_info"] = record.exc_info
        _emit(_process(None, level, event))


def _route_standard_logging(threshold: Level) -> None:
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _StandardHandler):
            root.removeHandler(handler)
    root.addHandler(_StandardHandler())
    # Libraries' debug output would drown ours; `trace` shows it.
    root.setLevel(threshold if threshold == Level.TRACE else max(threshold, Level.INFO))
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET if threshold == Level.TRACE else logging.WARNING)
    warnings.showwarning = _show_warning


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    _log.warning(str(message), category=category.__name__, where=f"{filename}:{lineno}")


def _route_uncaught() -> None:
    def main_thread(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            _log.critical("uncaught exception", exc_info=(kind, error, trace))
            flush_logs(1.0)

    def other_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            name = args.thread.name if args.thread else None
            _log.error("uncaught exception in a thread", thread=name, exc_info=args.exc_value)

    def unraisable(args: Any) -> None:
        _log.error("exception that could not be raised", where=repr(args.object)[:200], exc_info=args.exc_value)

    sys.excepthook = main_thread
    threading.excepthook = other_thread
    sys.unraisablehook = unraisable


def log_loop_exceptions(loop: asyncio.AbstractEventLoop) -> None:
    """Send what asyncio reports (a task's exception that nobody awaited, a failed callback) through this log."""

    def handle(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        what = context.get("task") or context.get("future") or context.get("handle")
        where = None if what is None else repr(what)[:200]
        _log.error(str(context.get("message")), where=where, exc_info=context.get("exception"))

    loop.set_exception_handler(handle)


_log = get_logger(__name__)
