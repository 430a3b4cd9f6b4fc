"""The faults that chaos draws from: which row of the matrix each is, where it strikes, and what may be seen of it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SIGKILL, SIGSEGV, SIGABRT, SIGSTOP = 9, 11, 6, 19
POINTS = {"prefill": "worker.prefill.chunk", "decode": "worker.decode.step", "clear": "worker.clear_kv"}
#: Passes of each point in one request of the runner's script: chunks of its prompt, tokens of its answer.
MOMENTS = {"prefill": 5, "decode": 11, "clear": 1}
ILLEGAL = "CUDA error: an illegal memory access was encountered"
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB."


@dataclass(frozen=True, slots=True)
class Injection:
    """`failpoints` are armed before the request; `signal` is sent, or the client leaves, `delay_s` after its start.

    `codes`: error codes a client may see ("" for a whole answer). `poisons`: True, False, or None for either.
    """

    row: int
    name: str
    phase: str
    moment: float
    codes: frozenset[str]
    poisons: bool | None
    failpoints: tuple[dict[str, Any], ...] = ()
    signal: int | None = None
    leaves: bool = False
    streamed: bool = True
    idle: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Kind:
    weight: float
    draw: Callable[[random.Random], Injection] = field(repr=False)


def at_point(row: int, name: str, codes: set[str], poisons: bool | None, phases: tuple[str, ...], **entry: Any) -> Kind:
    """A failpoint at a random pass of one of the phases' points."""

    def draw(rng: random.Random) -> Injection:
        phase = rng.choice(phases)
        start = rng.randint(1, MOMENTS[phase])
        armed = {"point": POINTS[phase], "start": start, **entry}
        return Injection(row, name, phase, start, frozenset(codes), poisons, (armed,), streamed=rng.random() < 0.7)

    return Kind(1.0, draw)


def on_reply(row: int, action: str, codes: set[str], poisons: bool | None, count: int = 1) -> Kind:
    """A link that lies: the answer to a random job of the request. Only the last ones carry a stamp."""

    def draw(rng: random.Random) -> Injection:
        start = rng.randint(16, 22) if action == "corrupt_stamp" else rng.randint(1, 10)
        armed = {"point": "worker.reply", "action": action, "start": start, "count": count}
        return Injection(row, action, "link", start, frozenset(codes), poisons, (armed,), streamed=rng.random() < 0.7)

    return Kind(1.0, draw)


def by_signal(row: int, name: str, number: int, codes: set[str], weight: float, *, idle: bool) -> Kind:
    def draw(rng: random.Random) -> Injection:
        delay = 0.0 if idle else rng.uniform(0.0, 0.35)
        phase = "idle" if idle else "any"
        return Injection(
            row, name, phase, round(delay, 3), frozenset(codes), None if not idle else True,
            signal=number, idle=idle, delay_s=delay,
        )  # fmt: skip

    return Kind(weight, draw)


def client_leaves(row: int, weight: float) -> Kind:
    def draw(rng: random.Random) -> Injection:
        delay = rng.uniform(0.0, 0.35)
        streamed = rng.random() < 0.5
        return Injection(
            row, "client leaves", "any", round(delay, 3), frozenset({""}), False,
            leaves=True, streamed=streamed, delay_s=delay,
        )  # fmt: skip

    return Kind(weight, draw)


_WORK = ("prefill", "decode")
_ALL = ("prefill", "decode", "clear")

KINDS: tuple[Kind, ...] = (
    at_point(2, "SIGKILL inside the process", {"worker_died"}, True, _ALL, action="signal", signal=SIGKILL),
    at_point(9, "SIGSEGV", {"worker_died"}, True, _WORK, action="signal", signal=SIGSEGV),
    at_point(9, "SIGABRT", {"worker_died"}, True, _WORK, action="signal", signal=SIGABRT),
    at_point(9, "exit", {"worker_died"}, True, _WORK, action="exit"),
    at_point(10, "illegal address", {"device_fault"}, True, _ALL, action="raise", error="runtime", text=ILLEGAL),
    at_point(16, "unknown exception", {"device_fault"}, True, _ALL, action="raise", error="runtime", text="zz"),
    at_point(11, "out of memory", {"insufficient_vram"}, False, _WORK, action="raise", error="runtime", text=OOM),
    at_point(14, "host error", {"internal_error"}, False, _WORK, action="raise", error="value", text="shape"),
    # A sequence that could not be cut back is begun anew: nobody notices.
    at_point(11, "out of memory", {""}, False, ("clear",), action="raise", error="runtime", text=OOM),
    at_point(17, "NaN logits", {"nan_logits"}, False, ("decode",), action="nan"),
    at_point(8, "slow step", {""}, False, _WORK, action="sleep", seconds=0.4),
    on_reply(21, "duplicate_reply", {""}, False, count=5),
    on_reply(21, "wrong_job", {"protocol_error"}, True),
    on_reply(21, "garbage", {"protocol_error"}, True),
    on_reply(21, "corrupt_stamp", {"protocol_error", ""}, None),
    by_signal(5, "SIGKILL from outside", SIGKILL, {""}, 1.5, idle=True),
    by_signal(3, "SIGKILL from outside", SIGKILL, {"worker_died", "model_poisoned", ""}, 3.0, idle=False),
    by_signal(7, "SIGSTOP", SIGSTOP, {"worker_unresponsive", "worker_died", "model_poisoned", ""}, 0.3, idle=False),
    by_signal(8, "SIGSTOP", SIGSTOP, {""}, 0.2, idle=True),
    client_leaves(25, 4.0),
)  # fmt: skip


def draw(rng: random.Random) -> Injection:
    kind = rng.choices(KINDS, [kind.weight for kind in KINDS])[0]
    return kind.draw(rng)
