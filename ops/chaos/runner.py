"""Runs injections one after another against one daemon; after each, every invariant of the matrix is checked."""

import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from ops.chaos.faults import Injection, draw
from tests.harness.clients import TARGET, RawClient, Stream, content
from tests.harness.rows import Holding, Neighbour, Rows, check_terminal_lines, rows, turn, until

ANSWER = "".join("abcdefghijkl")
TURNS = [turn(*ANSWER, when="#chaos#", delay_ms=12, prefill_ms_per_token=0.2)]
WORDS = " #chaos# " + "word " * 140
LIMITS = "prefill_chunk_tokens = 128\nstep_seconds = 1.5\nload_stall_seconds = 20.0"
LOG_EVERY = 50


class Outcome(msgspec.Struct):
    """One line of the report. Milliseconds, None where there is nothing to measure.

    `detect_ms`: from the signal to `poisoned` in /models; `refuse_ms`: a request to the poisoned model; `recover_ms`:
    the load that cured it. `seen`: the client's error code, "ok", or "left".
    """

    number: int
    row: int
    fault: str
    phase: str
    moment: float
    seen: str = ""
    poisoned: bool = False
    detect_ms: float | None = None
    refuse_ms: float | None = None
    recover_ms: float | None = None
    broken: list[str] = []


class Chaos:
    def __init__(self, held: Rows, seed: int) -> None:
        self._held = held
        self._rng = random.Random(seed)
        self._count = 0
        self._prompts = 0
        self._client = held.daemon.client(timeout=60.0)
        self._state()
        self._baseline = Holding.of(held.daemon)

    def close(self) -> None:
        self._client.close()

    def strike(self) -> Outcome:
        """One injection, from a resident model to a resident model."""
        self._count += 1
        injection = draw(self._rng)
        outcome = Outcome(self._count, injection.row, injection.name, injection.phase, injection.moment)
        self._held.arm(*injection.failpoints)
        struck = self._strike_idle(injection) if injection.idle else self._strike_request(injection, outcome)
        self._settle(injection, outcome, struck)
        return outcome

    # -- the blow ------------------------------------------------------------------------------

    def _strike_idle(self, injection: Injection) -> float:
        assert injection.signal is not None
        pid = self._held.pid
        os.kill(pid, injection.signal)
        return time.perf_counter()

    def _strike_request(self, injection: Injection, outcome: Outcome) -> float | None:
        if injection.leaves:
            self._leave(injection)
            outcome.seen = "left"
            return None
        struck: list[float] = []
        timer = self._signal_later(injection, struck)
        outcome.seen = self._ask(injection.streamed)
        if timer is not None:
            timer.join()
        allowed = {code or "ok" for code in injection.codes}
        if outcome.seen not in allowed:
            outcome.broken.append(f"the client saw {outcome.seen}, not {sorted(allowed)}")
        return struck[0] if struck else None

    def _signal_later(self, injection: Injection, struck: list[float]) -> threading.Timer | None:
        if injection.signal is None:
            return None
        pid, number = self._held.pid, injection.signal

        def kill() -> None:
            os.kill(pid, number)
            struck.append(time.perf_counter())

        timer = threading.Timer(injection.delay_s, kill)
        timer.start()
        return timer

    def _ask(self, streamed: bool) -> str:
        if not streamed:
            response = self._held.ask(self._prompt())
            return self._code(response)
        try:
            with Stream(self._held.daemon, self._prompt()) as stream:
                if stream.response.status_code != 200:
                    stream.response.read()
                    return self._code(stream.response)
                stream.read()
        except httpx.HTTPError as error:
            return type(error).__name__
        if stream.errors:
            return stream.errors[0] if not stream.done and len(stream.errors) == 1 else "a stream that goes on"
        return "ok" if "".join(stream.deltas) == ANSWER and stream.done else f"half an answer {stream.deltas}"

    def _prompt(self) -> str:
        """A new one each time: nothing of an earlier request is reused, so that every point is passed."""
        self._prompts += 1
        return f"{self._prompts}{WORDS}"

    def _code(self, response: httpx.Response) -> str:
        if response.status_code != 200:
            return str(response.json()["error"]["code"])
        return "ok" if content(response) == ANSWER else f"another answer {content(response)!r}"

    def _leave(self, injection: Injection) -> None:
        with RawClient(self._held.daemon) as client:
            client.post(self._prompt(), f"chaos-{self._count}", stream=injection.streamed)
            time.sleep(injection.delay_s)

    # -- afterwards ----------------------------------------------------------------------------

    def _state(self) -> str:
        entries = self._client.get("/models?all=true").json()
        return next((str(entry["state"]) for entry in entries if entry["id"].endswith(TARGET)), "absent")

    def _settle(self, injection: Injection, outcome: Outcome, struck: float | None) -> None:
        expected = injection.poisons
        if expected is None:
            expected = injection.signal is not None or outcome.seen not in ("ok", "left")
        deadline = time.perf_counter() + 10.0
        while (state := self._state()) != ("poisoned" if expected else "ready") and time.perf_counter() < deadline:
            time.sleep(0.002)
        outcome.poisoned = state == "poisoned"
        if outcome.poisoned is not expected:
            outcome.broken.append(f"the model is {state}")
        self._held.arm()
        if outcome.poisoned:
            if struck is not None:
                outcome.detect_ms = _ms(struck)
            self._refuse_and_recover(outcome)
        self._check(outcome)

    def _refuse_and_recover(self, outcome: Outcome) -> None:
        body = self._held.daemon.chat_body(TARGET, "hi")
        before = time.perf_counter()
        response = self._client.post("/v1/chat/completions", json=body)
        outcome.refuse_ms = _ms(before)
        if response.status_code != 503 or response.json()["error"]["code"] != "model_poisoned":
            outcome.broken.append(f"a poisoned model answered {response.status_code}")
        before = time.perf_counter()
        loaded = self._held.daemon.load(TARGET, devices=["cpu"])
        outcome.recover_ms = _ms(before)
        if loaded.status_code != 200:
            outcome.broken.append(f"the load that cures answered {loaded.status_code} {loaded.text[:200]}")

    def _check(self, outcome: Outcome) -> None:
        seen = self._ask(streamed=False)
        if seen != "ok":
            outcome.broken.append(f"the next request: {seen}")
        for what in (
            lambda: self._held.figures() == (0, 0),
            lambda: not Holding.of(self._held.daemon).beyond(self._baseline),
        ):
            try:
                until(what)
            except AssertionError:
                outcome.broken.append(f"{self._held.figures()} {Holding.of(self._held.daemon).beyond(self._baseline)}")
        if self._count % LOG_EVERY == 0:
            check_terminal_lines(self._held.daemon)


def _ms(since: float) -> float:
    return round((time.perf_counter() - since) * 1000, 1)


@contextmanager
def chaos(seed: int) -> Iterator[tuple[Chaos, Neighbour]]:
    """A daemon with the target and its neighbour, which is asked all the time."""
    with tempfile.TemporaryDirectory(prefix="neuron-chaos-") as directory:
        with rows(Path(directory), TURNS, limits=LIMITS) as held:
            held.resident()
            with Neighbour(held.daemon) as neighbour:
                running = Chaos(held, seed)
                try:
                    yield running, neighbour
                finally:
                    running.close()
            check_terminal_lines(held.daemon)


def summary(outcomes: list[Outcome], seed: int, neighbour: int, seconds: float) -> dict[str, Any]:
    broken = [outcome for outcome in outcomes if outcome.broken]
    return {
        "seed": seed,
        "injections": len(outcomes),
        "seconds": round(seconds, 1),
        "invariants_broken": len(broken),
        "poisonings": sum(outcome.poisoned for outcome in outcomes),
        "answers_of_the_neighbour": neighbour,
        "load_average": os.getloadavg()[0],
        **{name: _spread([getattr(outcome, name) for outcome in outcomes]) for name in MEASURES},
        "rows": {f"{row} {name}": count for (row, name), count in sorted(_counted(outcomes).items())},
    }


MEASURES = ("detect_ms", "refuse_ms", "recover_ms")


def _counted(outcomes: list[Outcome]) -> dict[tuple[int, str], int]:
    counts: dict[tuple[int, str], int] = {}
    for outcome in outcomes:
        key = (outcome.row, outcome.fault)
        counts[key] = counts.get(key, 0) + 1
    return counts


def _spread(values: list[float | None]) -> dict[str, float]:
    known = sorted(value for value in values if value is not None)
    if not known:
        return {"count": 0}
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    ranked = {name: known[min(len(known) - 1, int(share * len(known)))] for name, share in shares.items()}
    return {"count": len(known), **ranked, "max": known[-1]}
