"""Level 3 kit for rows of the fault matrix: a daemon with a model under fault on `cpu` and a neighbour on `cpu:1`,
and the invariants that hold after every row."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from neuron.runtime import shm
from tests.harness.clients import TARGET, check_error, content, own_principal
from tests.harness.daemon import DaemonProcess

NEIGHBOUR = "neighbour"
BOUND_S = 10.0
"""How long a row may take to come to rest. The aims are in ops/docs/faults.md; a shared machine gets room."""
HELPERS = 2
"""Template helpers that a busy daemon keeps."""


def turn(*emit: Any, **keys: Any) -> dict[str, Any]:
    return {"emit": list(emit), **keys}


def fault(kind: str, phase: str = "decode", at: int = 0, text: str = "", times: int = 1000) -> dict[str, Any]:
    return {"kind": kind, "phase": phase, "at": at, "text": text, "times": times}


@dataclass(frozen=True, slots=True)
class Holding:
    """What the daemon holds: descriptors, children, zombies among them, shared memory."""

    fds: int
    children: int
    zombies: int
    segments: frozenset[str]

    def beyond(self, before: "Holding") -> list[str]:
        """What is there that was not, or is no longer, in words."""
        found = []
        if self.fds > before.fds:
            found.append(f"{self.fds - before.fds} descriptors more")
        if self.children != before.children:
            found.append(f"{self.children} children instead of {before.children}")
        if self.zombies:
            found.append(f"{self.zombies} zombies")
        return found + sorted(self.segments - before.segments)

    @classmethod
    def of(cls, daemon: DaemonProcess) -> "Holding":
        pids = daemon.descendants()
        zombies = sum(is_zombie(pid) for pid in pids)
        names = frozenset(name for name in os.listdir(shm.DIRECTORY) if name.startswith(f"{shm.PREFIX}-{daemon.pid}-"))
        return cls(len(os.listdir(f"/proc/{daemon.pid}/fd")), len(pids) - zombies, zombies, names)


def is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and not is_zombie(pid)


def until(what: Callable[[], Any], within_s: float = BOUND_S, why: Callable[[], object] = str) -> Any:
    """The first true value of `what`. Fails after `within_s`."""
    deadline = time.monotonic() + within_s
    while not (value := what()):
        assert time.monotonic() < deadline, f"still {value!r} after {within_s} s {why()}"
        time.sleep(0.02)
    return value


class Neighbour:
    """Asks the neighbour model over and over from a thread; every answer must be right."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._daemon = daemon
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._answered = threading.Condition()
        self.answers = 0
        self.wrong: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.wait_for(self.answers + 1)
        self._stop.set()
        self._thread.join()
        if error is None:
            assert self.wrong == []

    def wait_for(self, count: int) -> None:
        with self._answered:
            assert self._answered.wait_for(lambda: self.answers >= count or self.wrong, 30.0)

    def _run(self) -> None:
        with self._daemon.client() as client:
            body = self._daemon.chat_body(NEIGHBOUR)
            headers = {"x-helexa-account-id": "neighbour"}
            while not self._stop.is_set():
                response = client.post("/v1/chat/completions", json=body, headers=headers)
                right = response.status_code == 200 and content(response) == "xyz"
                with self._answered:
                    self.answers += 1
                    if not right:
                        self.wrong.append(response.text)
                    self._answered.notify_all()
                self._stop.wait(0.05)


class Rows:
    """One daemon for a module's rows."""

    def __init__(self, daemon: DaemonProcess, control: Path, ranks: Sequence[str] = ("cpu",)) -> None:
        self.daemon = daemon
        #: The target's devices.
        self.ranks = list(ranks)
        self._control = control

    def arm(self, *entries: dict[str, Any]) -> None:
        """Failpoints of the target's (first) device process from its next point on; none without entries."""
        partial = self._control.with_suffix(".new")
        partial.write_text(json.dumps([{"device": "cpu", **entry} for entry in entries]))
        partial.replace(self._control)

    def ask(self, text: str = "plain", name: str = TARGET, **fields: Any) -> httpx.Response:
        """One buffered request; an error body is checked for what must not be in it."""
        with self.daemon.client(timeout=60.0) as client:
            response = client.post(
                "/v1/chat/completions", json=self.daemon.chat_body(name, text, **fields), headers=own_principal()
            )
        if response.status_code != 200:
            check_error(response)
        return response

    def code(self, text: str = "plain", **fields: Any) -> str:
        """ "ok", or the error code of a buffered request."""
        response = self.ask(text, **fields)
        return "ok" if response.status_code == 200 else str(response.json()["error"]["code"])

    @property
    def pid(self) -> int:
        return self.daemon.device_pids["cpu"]

    def state(self, name: str = TARGET) -> str | None:
        entry = self.daemon.model(name)
        return None if entry is None else str(entry["state"])

    @property
    def reason(self) -> str:
        """Why the target is poisoned, as /models says."""
        entry = self.daemon.model(TARGET)
        assert entry is not None
        return str(entry["reason"])

    def fill_helpers(self) -> None:
        """Requests side by side until the pool of template helpers is full, so that it grows in no row."""
        deadline = time.monotonic() + 30.0
        while sum("template_child" in command_line(pid) for pid in self.daemon.descendants()) < HELPERS:
            assert time.monotonic() < deadline
            threads = [threading.Thread(target=self.ask) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def load(self) -> httpx.Response:
        with self.daemon.client(timeout=60.0) as client:
            fields = {"devices": self.ranks, "tensor_parallel": len(self.ranks)}
            return client.post("/models/load", json={"model_id": self.daemon.model_id(TARGET), **fields})

    def resident(self) -> None:
        """The target loaded and answering, whatever the row before left."""
        self.arm()
        response = self.load()
        assert response.status_code == 200, response.text
        assert content(self.ask()) == "abc"

    def figures(self) -> tuple[int, int]:
        """(in flight, waiting) over all models but the neighbour."""
        models = [model for model in self.daemon.get("/health")["models"] if NEIGHBOUR not in model["id"]]
        return sum(model["in_flight"] for model in models), sum(model["queue_depth"] for model in models)

    @contextlib.contextmanager
    def row(self, *, neighbour: bool = True) -> Iterator[Self]:
        """The block is one row: the target is resident before; every invariant holds after.

        A model that the row poisoned is cured by a load; one that it unloaded is loaded again.
        """
        self.resident()
        self.fill_helpers()
        before = Holding.of(self.daemon)
        with Neighbour(self.daemon) if neighbour else contextlib.nullcontext():
            yield self
        assert self.state() in ("ready", "poisoned", "failed", None)
        if self.state() in ("poisoned", "failed"):
            refusal = self.ask()
            assert refusal.status_code in (404, 503), refusal.text
        self.resident()
        self.fill_helpers()
        self.check(before)

    def check(self, before: Holding) -> None:
        until(lambda: self.figures() == (0, 0))
        until(lambda: not Holding.of(self.daemon).beyond(before), why=lambda: Holding.of(self.daemon).beyond(before))
        check_terminal_lines(self.daemon)


def check_terminal_lines(daemon: DaemonProcess) -> None:
    """Every request that began has exactly one terminal line, once nothing runs any more."""

    def open_or_double() -> dict[str, int]:
        ends: dict[str, int] = {}
        for line in daemon.log_lines():
            if line["event"] == "starting" and "req_id" in line:
                ends.setdefault(line["req_id"], 0)
            elif line["event"] in ("done", "failed") and "req_id" in line:
                ends[line["req_id"]] = ends.get(line["req_id"], 0) + 1
        return {req_id: count for req_id, count in ends.items() if count != 1}

    deadline = time.monotonic() + BOUND_S
    while (odd := open_or_double()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert odd == {}


@contextlib.contextmanager
def rows(
    directory: Path,
    turns: Sequence[dict[str, Any]],
    *,
    limits: str = "",
    config: str = "",
    ranks: Sequence[str] = ("cpu",),
    **script: Any,
) -> Iterator[Rows]:
    """A daemon whose target script has `turns` and then "abc" for everything else; the neighbour says "xyz".

    The target lives on `ranks`, the neighbour on `cpu:1`.
    """
    control = directory / "failpoints.json"
    control.write_text("[]")
    scripts = {
        TARGET: {"turns": [*turns, turn("a", "b", "c")], **script},
        NEIGHBOUR: {"turns": [turn("x", "y", "z")]},
    }
    text = (
        f"{config}\n[limits]\nper_principal = 100\n{limits}\n"
        f'[[models]]\nid = "scripted:test/{NEIGHBOUR}"\ndevices = ["cpu:1"]\n'
        f'[[models]]\nid = "scripted:test/{TARGET}"\ndevices = {json.dumps(list(ranks))}\n'
        f"tensor_parallel = {len(ranks)}\n"
    )
    with DaemonProcess(scripts, text, models=[], environment={"NEURON_FAILPOINTS": str(control)}) as daemon:
        held = Rows(daemon, control, ranks)
        held.fill_helpers()
        yield held
