"""Overload and races: only the allowed answers, and nothing held at the end."""

import random
from collections import Counter
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from neuron.actors.daemon import ModelState
from neuron.actors.events import Finish
from neuron.runtime.errors import NeuronError
from tests.actors.host import EOS, FAST, Host, daemon, drain, turn
from tests.harness.invariants import Resources

pytestmark = pytest.mark.anyio
FOX = turn("The quick br", "own", " fox", EOS)


async def test_overload_gives_answers_and_429_only(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(FAST, queue_per_model=32, per_principal=2, queue_seconds=60.0)
    async with daemon(tmp_path, {"m": FOX}, limits=limits) as host:
        codes: Counter[str] = Counter()

        async def client(number: int) -> None:
            for _ in range(3):
                try:
                    answer = await host.ask("m", principal=f"p{number}")
                except NeuronError as error:
                    codes[f"{error.status} {error.code} retry={error.retry_after is not None}"] += 1
                else:
                    assert answer.text == "The quick brown fox"
                    codes["ok"] += 1

        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(client, number)
        assert set(codes) == {"ok", "429 rate_limit_exceeded retry=True"}
        assert codes.total() == 600
        await host.until_idle("m")
        assert not host.entry("m").turnstile._principals


ALLOWED = {
    "model_not_found",
    "model_loading",
    "model_unloading",
    "already_loaded",
    "rate_limit_exceeded",
    "worker_died",
    "model_poisoned",
}


@pytest.mark.parametrize("seed", range(3))
async def test_loads_unloads_and_requests_race(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with daemon(tmp_path, {"m": FOX}) as host:
        seen: Counter[str] = Counter()

        async def act(host: Host, choice: float) -> None:
            try:
                if choice < 0.6:
                    answer = await host.ask("m")
                    end = answer.end
                    seen["ok" if isinstance(end, Finish) else end.error.code] += 1
                    if isinstance(end, Finish):
                        assert answer.text == "The quick brown fox"
                elif choice < 0.8:
                    await host.load("m")
                else:
                    await host.registry.unload("test/m")
            except NeuronError as error:
                seen[error.code] += 1

        for _ in range(12):
            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(act, host, rng.random())
                    if rng.random() < 0.5:
                        await anyio.lowlevel.checkpoint()
        assert set(seen) <= ALLOWED | {"ok"}, seen
        await host.load("m")
        assert host.state("m") is ModelState.READY
        assert (await host.ask("m")).text == "The quick brown fox"
        await host.until_idle("m")
        assert len(host.registry.models(everything=True)) == 1


async def test_kills_among_requests(tmp_path: Path) -> None:
    rng = random.Random(5)
    endless = turn("x", repeat=True, delay_ms=1, when="endless")
    async with daemon(tmp_path, {"m": [endless, FOX]}) as host:
        before = Resources.now()
        for _ in range(6):
            streams = [await host.submit("m", "endless") for _ in range(3)]
            await anyio.sleep(rng.random() * 0.05)
            if rng.random() < 0.5:
                streams[rng.randrange(3)].cancel()
            old = host.kill()
            for stream in streams:
                if stream.wanted_end is None:  # type: ignore[attr-defined]
                    assert (await drain(stream, 5)).code in ("worker_died", "model_poisoned")
            await host.until_state("m", ModelState.POISONED)
            await host.load("m")
            assert host.pid() != old
            assert (await host.ask("m")).text == "The quick brown fox"
        after = Resources.now()
        assert len(after.children) == len(before.children)
        assert len(after.segments) == len(before.segments)
        assert after.fds <= before.fds
