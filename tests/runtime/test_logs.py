"""Logging: one JSON object a line whatever is logged (LOG-02), and no reader of stderr can stop us (row 59)."""

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from neuron.runtime import logs
from neuron.runtime.errors import ConfigError
from neuron.runtime.log_render import MAX_JSON_BYTES, render_console, render_json, revive
from neuron.runtime.log_writer import MAX_LINE_BYTES, LineWriter

ROOT = Path(__file__).parents[2]

Event = dict[str, Any]


class Capture:
    def __init__(self, path: Path) -> None:
        self.path = path

    def text(self) -> str:
        logs.flush_logs(5)
        return self.path.read_text()

    def events(self) -> list[Event]:
        return [json.loads(line) for line in self.text().splitlines()]


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Capture]:
    path = tmp_path / "log"
    with open(path, "wb", buffering=0) as file, logs.redirected(file.fileno()):
        yield Capture(path)


log = logs.get_logger("tests.log")


def test_keys_and_their_order(capture: Capture) -> None:
    log.bind(req_id="r-1").info("starting", model="a/b", tokens=3, absent=None)
    (event,) = capture.events()
    assert list(event) == ["timestamp", "level", "event", "logger", "req_id", "model", "tokens", "pid"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["timestamp"])
    assert event["level"] == "info"
    assert event["logger"] == "tests.log"
    assert event["pid"] == os.getpid()


def test_levels_and_the_one_below_debug(capture: Capture) -> None:
    for name in ("trace", "debug", "info", "warning", "error", "critical"):
        getattr(log, name)(name)
    assert [event["level"] for event in capture.events()] == ["trace", "debug", "info", "warning", "error", "critical"]


@pytest.mark.parametrize(("level", "expected"), [("debug", 5), ("INFO", 4), ("warn", 3), ("error", 2), ("critical", 1)])
def test_a_level_hides_what_is_below(tmp_path: Path, level: str, expected: int) -> None:
    path = tmp_path / "log"
    with open(path, "wb", buffering=0) as file, logs.redirected(file.fileno(), level):
        for name in ("trace", "debug", "info", "warning", "error", "critical"):
            getattr(log, name)(name)
        assert logs.is_enabled(logs.Level.CRITICAL)
        assert not logs.is_enabled(logs.Level.TRACE)
    assert len(path.read_text().splitlines()) == expected


@pytest.mark.parametrize(("level", "format"), [("loud", "json"), ("info", "xml"), ("", "json")])
def test_an_unknown_level_or_format_is_one_clear_line(level: str, format: str) -> None:
    with pytest.raises(ConfigError, match="unknown log"):
        logs.configure_logging(level, format)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(object()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=10,
)


@given(st.text(), st.dictionaries(st.text(max_size=10), anything, max_size=4))
def test_any_event_is_one_ascii_json_line(text: str, keys: dict[str, Any]) -> None:
    line = render_json({"level": "info", "logger": "x", **keys, "event": text})
    assert line.isascii()
    assert b"\n" not in line
    assert line.decode().isprintable()
    event = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert isinstance(event["event"], str)
    assert len(line) < MAX_LINE_BYTES


@given(st.text(), st.dictionaries(st.text(max_size=10), anything, max_size=4))
def test_any_event_is_one_console_line(text: str, keys: dict[str, Any]) -> None:
    keys.pop("exception", None)
    line = render_console({"level": "info", "logger": "x", **keys, "event": text}, colours=False).decode()
    assert len(line.splitlines()) == 1
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", line)


@pytest.mark.parametrize(
    "text",
    [
        'x","level":"error',
        "first\nsecond",
        "a\r\nb",
        "\x1b[2J\x1b]0;title\x07",
        "\x9b31m",
        "sep\u2028arated\u2029",
        "\u202egnitirw",
        "\x00\x7f",
    ],
)
def test_caller_controlled_text_cannot_forge_records(capture: Capture, text: str) -> None:
    """LOG-02."""
    log.info("request", model=text, agent=text)
    (event,) = capture.events()
    assert event["level"] == "info"
    assert event["model"] == text
    assert capture.text().rstrip("\n").isprintable()


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def test_values_that_cannot_be_shown_cost_no_line(capture: Capture) -> None:
    endless: list[Any] = []
    endless.append(endless)
    log.info("odd", a=Hostile(), b=endless, c=float("inf"), d=2**100_000, e="\ud800", f={1: {2, 3}}, g=b"\xff")
    (event,) = capture.events()
    assert event["a"] == "<Hostile>"
    assert event["c"] == "inf"
    assert event["e"] == "?"
    assert event["f"] == {"1": [2, 3]}


def test_a_huge_event_is_shortened(capture: Capture) -> None:
    log.info("big", image="A" * 3_000_000)
    log.info("wide", **{f"k{number}": "v" * 10_000 for number in range(100)})
    text = capture.text()
    assert len(text) < 2 * MAX_JSON_BYTES
    assert capture.events()[1]["shortened"] is True


def test_an_exception_shows_its_causes_first_outermost(capture: Capture) -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error
    except ValueError:
        log.exception("failed", req_id="r")
    (event,) = capture.events()
    assert event["causes"] == ["ValueError: outer", "KeyError: 'inner'"]
    assert "Traceback" in event["exception"]
    assert event["level"] == "error"


def test_context_variables_are_on_every_event(capture: Capture) -> None:
    with structlog.contextvars.bound_contextvars(req_id="r-9"):
        log.info("inside")
        structlog.get_logger().warning("from elsewhere")
    log.info("outside")
    assert [event.get("req_id") for event in capture.events()] == ["r-9", "r-9", None]


def test_standard_logging_and_warnings_come_out_alike(capture: Capture) -> None:
    logging.getLogger("library").warning("%s of %d", "one", 2)
    record = logging.LogRecord("library", logging.INFO, __file__, 1, "bad format %d", ("x",), None)
    ours = next(each for each in logging.getLogger().handlers if type(each).__module__ == logs.__name__)
    ours.handle(record)
    try:
        raise OSError("gone")
    except OSError:
        logging.getLogger("library").exception("failed")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning("careful", UserWarning, "file.py", 3)
    events = capture.events()
    assert [(event["level"], event["event"]) for event in events] == [
        ("warning", "one of 2"),
        ("info", "bad format %d"),
        ("error", "failed"),
        ("warning", "careful"),
    ]
    assert events[0]["logger"] == "library"
    assert events[2]["causes"] == ["OSError: gone"]


def test_uncaught_exceptions_of_threads_and_tasks_come_out_alike(capture: Capture) -> None:
    def fail() -> None:
        raise ValueError("in a thread")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        logs.log_loop_exceptions(loop)
        loop.call_soon(fail)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()

    anyio.run(main)
    events = [event for event in capture.events() if event["level"] == "error"]
    assert events[0]["event"] == "uncaught exception in a thread"
    assert [event["causes"] for event in events] == [["ValueError: in a thread"]] * 2


def test_a_process_that_dies_of_an_exception_says_so_in_json() -> None:
    code = "from neuron.runtime import logs; logs.configure_logging('info', device='cpu:1'); raise ValueError('end')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    (line,) = done.stderr.splitlines()
    event = json.loads(line)
    assert (event["event"], event["device"], event["level"]) == ("uncaught exception", "cpu:1", "critical")
    assert done.returncode == 1


def test_the_console_format_is_for_eyes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with open(path, "wb", buffering=0) as file, logs.redirected(file.fileno(), "info", "console"):
        log.info("hello", model="a b", count=3)
        logs.relay_child_line(render_json({"event": "from a child", "level": "info"}))
    first, second = path.read_text().splitlines()
    assert re.fullmatch(r'\d\d:\d\d:\d\d\.\d{3} info     hello  logger=tests.log model="a b" count=3 pid=\d+', first)
    assert "from a child" in second


@pytest.mark.parametrize(
    "line", [b"", b"text", b"{", b"{}", b'{"event": 3, "level": "info"}', b'["event"]', b"{" * 100_000, b'{"a":\xff}']
)
def test_only_events_are_taken_for_events(line: bytes) -> None:
    assert revive(line) is None


# -- the writer ---------------------------------------------------------------------------------


def test_a_reader_that_stalls_blocks_nobody_and_losses_are_counted() -> None:
    read_fd, write_fd = os.pipe()
    writer = LineWriter(write_fd, max_queued_bytes=100_000)
    for _ in range(1000):
        writer.write(b"x" * 999)
    assert writer.dropped > 700
    assert not writer.flush(0.01)
    kept = 1000 - writer.dropped
    received = 0
    while received < kept * 1000:
        received += len(os.read(read_fd, 65536))
    assert writer.flush(10)
    writer.close(1)
    os.close(read_fd)
    os.close(write_fd)


def test_losses_are_reported_when_the_reader_is_back() -> None:
    read_fd, write_fd = os.pipe()
    with logs.redirected(write_fd, "info"):
        for _ in range(3000):
            log.info("x" * 5000)
        lost = logs.dropped_lines()
        assert lost > 0
        received = bytearray()

        def read() -> None:
            while data := os.read(read_fd, 65536):
                received.extend(data)

        thread = threading.Thread(target=read)
        thread.start()
        logs.flush_logs(30)
        log.info("back")
        logs.flush_logs(30)
    os.close(write_fd)
    thread.join()
    os.close(read_fd)
    events = [json.loads(line) for line in bytes(received).splitlines()]
    assert [event["lines"] for event in events if event["event"] == "log lines dropped"] == [lost]
    assert events[-1]["event"] == "back"


def test_a_closed_pipe_and_a_full_disk_are_survived() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    for fd in (write_fd, os.open("/dev/full", os.O_WRONLY)):
        writer = LineWriter(fd)
        for _ in range(10):
            writer.write(b"line")
        assert writer.flush(10)
        assert writer.dropped == 10
        writer.close(1)
        writer.write(b"late")
        assert writer.dropped == 11
        os.close(fd)


@pytest.mark.parametrize("target", ["closed pipe", "full pipe", "/dev/full", "no stderr"])
def test_a_process_with_a_broken_stderr_does_its_work(target: str) -> None:
    """Row 59: no SIGPIPE death, no block, and the end of the process is not held up for long."""
    code = (
        "import signal, sys\n"
        "from neuron.runtime import logs\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "logs.configure_logging('info')\n"
        "log = logs.get_logger('x')\n"
        "for n in range(3000): log.info('line', n=n, pad='y' * 200)\n"
        "print('worked', flush=True)\n"
        "logs.flush_logs(0.2)\n"
    )
    read_fd, write_fd = os.pipe()
    if target == "closed pipe":
        os.close(read_fd)
    if target == "/dev/full":
        os.close(write_fd)
        write_fd = os.open(target, os.O_WRONLY)
    close = "import os; os.close(2)\n" if target == "no stderr" else ""
    process = subprocess.Popen([sys.executable, "-c", close + code], stdout=subprocess.PIPE, stderr=write_fd, cwd=ROOT)
    out, _ = process.communicate(timeout=60)
    assert out == b"worked\n"
    assert process.returncode == 0
    os.close(write_fd)
    if target != "closed pipe":
        os.close(read_fd)
