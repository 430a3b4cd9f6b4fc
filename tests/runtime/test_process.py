"""Child processes: started afresh, seen to end at once, reaped, their words logged, none left behind."""

import errno
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from neuron.runtime import logs
from neuron.runtime.child import EXIT_ORPHAN
from neuron.runtime.link import Link
from neuron.runtime.process import ChildProcess
from neuron.runtime.shm import SlotSegment
from tests.runtime.linked import PROGRAMS, spawn_linked
from tests.runtime.programs import Message, Number, Text

pytestmark = [pytest.mark.anyio]

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def log_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "log"
    with ExitStack() as stack:
        file = stack.enter_context(open(path, "wb", buffering=0))
        with logs.redirected(file.fileno(), level="info"):
            yield path


class Worker:
    """A child with a running link; messages come out of `receive`."""

    def __init__(self, child: ChildProcess, link: Link[Message]) -> None:
        self.child = child
        self.link = link
        self.messages: list[Message] = []
        self.news = anyio.Event()
        self.ended = False

    @classmethod
    async def start(cls, mode: str) -> "Worker":
        child, sock = await spawn_linked([mode])
        return cls(child, Link(sock, Message))

    async def run(self) -> None:
        await self.link.run(self._take)
        self.ended = True
        self.news.set()

    def _take(self, message: Message) -> None:
        self.messages.append(message)
        self.news.set()

    async def receive(self) -> Message:
        with anyio.fail_after(60):
            while not self.messages:
                assert not self.ended, "the child said nothing and left"
                self.news = anyio.Event()
                await self.news.wait()
        return self.messages.pop(0)


async def _wait(child: ChildProcess) -> str:
    with anyio.fail_after(60):
        return str(await child.wait())


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _events(path: Path) -> list[dict[str, object]]:
    logs.flush_logs()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("nothing_left")
async def test_a_child_talks_and_ends_with_its_link() -> None:
    worker = await Worker.start("echo")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        for number in range(20):
            worker.link.post(Number(number))
            assert await worker.receive() == Number(number)
        assert worker.child.status is None
        worker.link.close()
        # Either the watcher thread or the blocked receive may see it first.
        assert await _wait(worker.child) in (f"exit status {EXIT_ORPHAN}", "exit status 1")
    assert not _exists(worker.child.pid)  # reaped: no zombie


@pytest.mark.usefixtures("nothing_left")
async def test_kill_is_seen_with_its_signal_and_by_all_who_wait() -> None:
    worker = await Worker.start("echo")
    seen: list[str] = []

    async def watch() -> None:
        seen.append(await _wait(worker.child))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(watch)
        os.kill(worker.child.pid, signal.SIGKILL)
    assert seen == ["signal SIGKILL"] * 3
    assert worker.child.status is not None
    worker.child.kill()
    worker.link.close()


@pytest.mark.usefixtures("nothing_left")
async def test_frames_sent_before_death_are_read() -> None:
    worker = await Worker.start("two_frames_then_die")
    with anyio.fail_after(60):
        await worker.run()
    assert worker.messages == [Text("one"), Text("two")]
    assert await _wait(worker.child) == "signal SIGKILL"


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("stopped", [False, True])
async def test_a_stubborn_child_is_killed(stopped: bool) -> None:
    """Row 7: a stopped process can be killed, and by nothing milder."""
    worker = await Worker.start("stubborn")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        assert await worker.receive() == Text("ready")
        os.kill(worker.child.pid, signal.SIGTERM)
        if stopped:
            os.kill(worker.child.pid, signal.SIGSTOP)
        assert worker.child.status is None
        worker.child.kill()
        assert await _wait(worker.child) == "signal SIGKILL"


async def test_stderr_comes_out_as_json_lines(log_file: Path) -> None:
    worker = await Worker.start("noise")
    assert await _wait(worker.child) == "exit status 5"
    worker.link.close()
    events = _events(log_file)
    own = [event for event in events if event["event"] == "structured"]
    assert len(own) == 1
    assert own[0]["device"] == "cpu"
    assert own[0]["pid"] == worker.child.pid
    wrapped = [event for event in events if event["event"] == "worker stderr"]
    assert {event["worker_pid"] for event in wrapped} == {worker.child.pid}
    lines = [str(event["line"]) for event in wrapped]
    assert "plain \x1b[31m words" in lines
    assert '{"event": "half' in lines
    assert sum(len(line) for line in lines if set(line) == {"x"}) == 100_000
    assert lines[-1] == "last words"


async def test_a_native_crash_names_its_signal_and_leaves_its_report(log_file: Path) -> None:
    """Row 9."""
    worker = await Worker.start("segfault")
    assert await _wait(worker.child) == "signal SIGSEGV"
    worker.link.close()
    assert any("Segmentation fault" in str(event.get("line")) for event in _events(log_file))


@pytest.mark.usefixtures("nothing_left")
async def test_a_grandchild_that_holds_everything_open_hides_no_death() -> None:
    worker = await Worker.start("grandchild")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        message = await worker.receive()
        assert isinstance(message, Number)
        try:
            os.kill(worker.child.pid, signal.SIGKILL)
            assert await _wait(worker.child) == "signal SIGKILL"
            assert _exists(message.number)
        finally:
            os.kill(message.number, signal.SIGKILL)
            worker.link.close()


async def test_a_child_inherits_its_link_and_no_sibling() -> None:
    workers = [await Worker.start("open_fds") for _ in range(3)]
    for worker in workers:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            # Its link, and the watcher thread's own descriptor of it.
            assert await worker.receive() == Number(2)
        await _wait(worker.child)


async def test_a_child_cannot_speak_for_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setenv("WATCHDOG_USEC", "1000")
    worker = await Worker.start("environment")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        message = await worker.receive()
    assert isinstance(message, Text)
    assert "PATH" in message.text.split(",")
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(message.text.split(","))
    await _wait(worker.child)


async def test_only_the_main_thread_starts_children() -> None:
    caught: list[BaseException] = []

    def start() -> None:
        try:
            anyio.run(Worker.start, "echo")
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


@pytest.mark.usefixtures("nothing_left")
async def test_a_failed_start_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(FileNotFoundError):
        await spawn_linked(["echo"])


@pytest.mark.usefixtures("nothing_left")
async def test_a_child_that_cannot_be_watched_is_not_left_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 41: descriptors run out between the start and the watch."""
    started: list[int] = []

    def none_left(pid: int) -> int:
        started.append(pid)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        await spawn_linked(["stubborn"])
    assert not _exists(started[0])


async def test_children_are_started_afresh_whatever_the_start_method() -> None:
    """LIFE-06: an embedding program has asked for fork; the child is a new interpreter all the same."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    try:
        worker = await Worker.start("echo")
    finally:
        multiprocessing.set_start_method(before, force=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        worker.link.post(Text("hello"))
        assert await worker.receive() == Text("hello")  # until then the kernel may not yet show the new command line
        command = Path(f"/proc/{worker.child.pid}/cmdline").read_bytes().split(b"\0")  # noqa: ASYNC240
        assert command[:4] == [sys.executable.encode(), b"-P", b"-m", PROGRAMS.encode()]
        worker.child.kill()
        await _wait(worker.child)


async def test_the_working_directory_is_no_place_to_import_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit(99)")
    monkeypatch.chdir(tmp_path)
    worker = await Worker.start("echo")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        worker.link.post(Text("hello"))
        assert await worker.receive() == Text("hello")
        worker.child.kill()
        await _wait(worker.child)


@pytest.mark.usefixtures("nothing_left")
async def test_shared_memory_survives_the_death_of_who_attached() -> None:
    """LIFE-03 with real workers: normal end, kill -9, and rounds of attach and detach."""
    segment = SlotSegment.create(2, 4096)
    segment.row(0)[:] = 1.0
    for _ in range(2):
        worker = await Worker.start("rows")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            for _ in range(10):
                worker.link.post(Text(segment.name))
                assert await worker.receive() == Number(1024)
                assert segment.stamped_row(1, 99)[0] == 7.0
            worker.child.kill()
            await _wait(worker.child)
    assert float(segment.row(0).sum()) == 1024.0
    segment.close()


# -- death of the parent ------------------------------------------------------------------------


def _start_parent(modes: list[str]) -> tuple[subprocess.Popen[bytes], list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.parent_program", *modes], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == len(modes)
    return process, pids


def _ended(pid: int) -> bool:
    """Waits up to 5 s for a process that is not ours to wait for."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(5000))
    finally:
        os.close(pidfd)


@pytest.mark.parametrize(
    "modes",
    [
        ["echo", "echo", "echo"],
        # Each belt alone: the thread that watches the link; the kernel's signal.
        ["watched:stubborn", "watched:stubborn", "watched:stubborn"],
        ["bound:frozen_link", "bound:frozen_link", "bound:frozen_link"],
        # No Python thread can run: only the kernel's signal helps.
        ["gil_held", "bound:gil_held", "stubborn"],
    ],
    ids=["both", "link", "kernel", "locked interpreter"],
)
def test_a_killed_parent_leaves_no_worker_and_no_segment(modes: list[str]) -> None:
    """Rows 30 and 38: three workers alive, each holding its own end only."""
    parent, pids = _start_parent(modes)
    parent.kill()
    parent.communicate(timeout=30)
    assert [pid for pid in pids if not _ended(pid)] == []
    assert [name for name in os.listdir("/dev/shm") if f"-{parent.pid}-" in name] == []


def test_a_child_that_starts_after_its_parent_died_ends_itself() -> None:
    ours, theirs = socket.socketpair()
    done = subprocess.run(
        [sys.executable, "-m", PROGRAMS, "--fd", str(theirs.fileno()), "--parent", "1", "bound:stubborn"],
        pass_fds=[theirs.fileno()],
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == EXIT_ORPHAN
    ours.close()
    theirs.close()
