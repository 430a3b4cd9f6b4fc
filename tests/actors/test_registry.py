"""The registry over real device processes: answers, the queue, cancellation at every point, loads and unloads."""

from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from neuron.actors.daemon import ModelState
from neuron.actors.errors import ContextLengthExceeded, RateLimited
from neuron.actors.events import FinishReason, Queued, Start, TextDelta
from neuron.actors.request import SamplingParams
from neuron.runtime.errors import NeuronError
from tests.actors.host import EOS, FAST, daemon, drain, read_until, turn
from tests.harness.invariants import Resources, assert_nothing_left

pytestmark = pytest.mark.anyio
FOX = turn("The quick br", "own", " fox", EOS)
ENDLESS = turn("x", repeat=True, delay_ms=2)


async def test_an_answer_with_its_figures(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"fox": FOX}) as host:
        answer = await host.ask("fox")
        assert answer.text == "The quick brown fox"
        assert isinstance(answer.events[0], Start)
        finish = answer.finish
        assert (finish.reason, finish.usage.completion_tokens) == (FinishReason.STOP, 4)
        assert finish.usage.prompt_tokens == answer.events[0].prompt_tokens == finish.timings.prefill_tokens
        figures = host.registry.load_figures()[0]
        assert (figures.in_flight, figures.queue_depth, figures.queue) == (0, 0, ())
        assert figures.tok_s_prefill > 0
        assert figures.tok_s_decode > 0


@pytest.mark.parametrize(("asked", "expected"), [(1, 1), (2, 2), (3, 3)])
async def test_max_tokens_is_exact(tmp_path: Path, asked: int, expected: int) -> None:
    async with daemon(tmp_path, {"endless": ENDLESS}) as host:
        answer = await host.ask("endless", max_tokens=asked)
        assert answer.text == "x" * expected
        assert answer.finish.reason is FinishReason.LENGTH
        assert answer.finish.usage.completion_tokens == expected


async def test_the_context_bounds_prompt_and_answer(tmp_path: Path) -> None:
    script = {"turns": [turn("x", repeat=True)], "context_length": 100}
    async with daemon(tmp_path, {"small": script}) as host:
        answer = await host.ask("small", max_tokens=10_000)
        usage = answer.finish.usage
        assert usage.prompt_tokens + usage.completion_tokens == 100
        assert answer.finish.reason is FinishReason.LENGTH
        frame = usage.prompt_tokens - len("hi")
        full = await host.ask("small", "y" * (100 - frame))
        assert full.finish.usage.prompt_tokens == 100
        assert full.finish.usage.completion_tokens == 1
        with pytest.raises(ContextLengthExceeded) as caught:
            await host.submit("small", "y" * (101 - frame))
        assert (caught.value.extra["prompt_len"], caught.value.extra["max"]) == (101, 100)
        await host.until_idle("small")


@pytest.mark.parametrize("stop", ["own fox", "br"])
async def test_a_stop_string_ends_the_answer_and_the_next_one_is_whole(tmp_path: Path, stop: str) -> None:
    async with daemon(tmp_path, {"fox": FOX}) as host:
        answer = await host.ask("fox", stop=(stop,))
        assert answer.text == "The quick brown fox".partition(stop)[0]
        assert answer.finish.reason is FinishReason.STOP
        assert answer.finish.stop_sequence == stop
        assert (await host.ask("fox")).text == "The quick brown fox"


async def test_prefill_runs_in_chunks(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(FAST, prefill_chunk_tokens=16)
    async with daemon(tmp_path, {"fox": FOX}, limits=limits) as host:
        before = host.entry("fox").resident
        assert before is not None
        answer = await host.ask("fox", "y" * 200)
        assert answer.text == "The quick brown fox"
        assert before.next_stamp() > 200 // 16


async def test_two_clients_are_answered_in_order(tmp_path: Path) -> None:
    scripts = {"two": [turn("a", "a", EOS, when="first", delay_ms=30), turn("b", "b", EOS, when="second")]}
    async with daemon(tmp_path, scripts) as host:
        first = await host.submit("two", "first")
        second = await host.submit("two", "second")
        assert [entry.position for entry in host.registry.load_figures()[0].queue] == [1]
        order: list[str] = []

        async def read(name: str, stream: object) -> None:
            answer = await drain(stream)  # type: ignore[arg-type]
            order.append(f"{name}:{answer.text}")
            if name == "second":
                assert [event.position for event in answer.events if isinstance(event, Queued)] == [1]
                assert answer.finish.timings.queue_ms > 0

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, "second", second)
            tasks.start_soon(read, "first", first)
        assert order == ["first:aa", "second:bb"]


async def test_a_queue_is_bounded(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(FAST, queue_per_model=3)
    async with daemon(tmp_path, {"endless": ENDLESS}, limits=limits) as host:
        held = [await host.submit("endless") for _ in range(4)]
        with pytest.raises(RateLimited) as full:
            await host.submit("endless")
        assert full.value.extra["kind"] == "queue_full"
        assert full.value.retry_after == 8
        assert host.registry.load_figures()[0].rejected_queue_full == 1
        for stream in held:
            stream.cancel()
        await host.until_idle("endless")


async def test_one_caller_has_two_seats(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(FAST, per_principal=2)
    async with daemon(tmp_path, {"endless": ENDLESS}, limits=limits) as host:
        held = [await host.submit("endless", principal="a") for _ in range(2)]
        with pytest.raises(RateLimited) as share:
            await host.submit("endless", principal="a")
        assert share.value.extra["kind"] == "per_principal"
        held.append(await host.submit("endless", principal="b"))
        assert host.registry.load_figures()[0].rejected_per_principal == 1
        held[1].cancel()
        with anyio.fail_after(5):
            while host.registry.load_figures()[0].queue_depth > 1:
                await anyio.lowlevel.checkpoint()
        held.append(await host.submit("endless", principal="a"))
        for stream in held:
            stream.cancel()
        await host.until_idle("endless")


async def test_a_wait_that_is_too_long_ends(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(FAST, queue_seconds=0.2)
    async with daemon(tmp_path, {"endless": ENDLESS}, limits=limits) as host:
        first = await host.submit("endless")
        assert (await host.ask("endless")).code == "queue_timeout"
        assert host.registry.load_figures()[0].rejected_timeout == 1
        first.cancel()
        await host.until_idle("endless")


async def test_a_queued_client_that_leaves_never_reaches_the_device(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"endless": ENDLESS}) as host:
        first = await host.submit("endless")
        second = await host.submit("endless")
        third = await host.submit("endless", max_tokens=1)
        second.cancel()
        await anyio.lowlevel.checkpoint()
        await anyio.sleep(0.01)
        assert host.registry.load_figures()[0].queue_depth == 1
        first.cancel()
        assert (await drain(third)).text == "x"
        await host.until_idle("endless")


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8])
async def test_cancel_at_every_await_then_an_ordinary_request(tmp_path: Path, steps: int) -> None:
    """CONC-04: whatever point the cancel hits, the next request reads its own answer and the lock is free."""
    scripts = {"m": [turn("n", "o", repeat=True, when="cancelled"), FOX]}
    async with daemon(tmp_path, scripts) as host:
        for loops in range(steps, steps + 30, 6):
            stream = await host.submit("m", "cancelled " + "y" * 1200)
            for _ in range(loops):
                await anyio.lowlevel.checkpoint()
            stream.cancel()
            assert (await host.ask("m")).text == "The quick brown fox"
        await host.until_idle("m")
        assert host.state("m") is ModelState.READY


async def test_a_client_that_leaves_frees_the_model_within_a_step(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"endless": ENDLESS}) as host:
        stream = await host.submit("endless", max_tokens=4000)
        await read_until(stream, TextDelta, 5)
        entry = host.entry("endless")
        assert entry.resident is not None
        stamp = entry.resident.next_stamp()
        stream.cancel()
        await host.until_idle("endless")
        assert entry.resident.next_stamp() - stamp <= 3


async def test_a_reader_that_stalls_is_cut_and_the_model_is_free(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(FAST, write_idle_seconds=0.1)
    async with daemon(tmp_path, {"endless": ENDLESS}, limits=limits) as host:
        stream = await host.submit("endless", max_tokens=4000)
        await host.until_idle("endless")
        assert (await drain(stream)).code == "slow_client"
        assert (await host.ask("endless", max_tokens=1)).text == "x"


async def test_nothing_is_left_after_a_life(tmp_path: Path) -> None:
    async def live() -> None:
        async with daemon(tmp_path, {"fox": FOX, "endless": ENDLESS}) as host:
            stream = await host.submit("endless")
            await read_until(stream, TextDelta)
            await host.ask("fox")
            stream.cancel()

    await live()  # Threads of the pool and the spawn helper of the first life stay.
    before = Resources.now()
    await live()
    assert_nothing_left(before)


async def test_sampling_reaches_the_answer(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"fox": FOX}) as host:
        answer = await host.ask("fox", logprobs=True, top_logprobs=2)
        deltas = [event for event in answer.events if isinstance(event, TextDelta)]
        entries = [entry for delta in deltas for entry in delta.logprobs]
        assert "".join(entry.token for entry in entries) == "The quick brown fox"
        assert all(entry.logprob <= 0 and len(entry.top) == 2 for entry in entries)
        biased = SamplingParams(temperature=0.0, logit_bias=((ord("z"), 1e6),))
        assert (await host.ask("fox", sampling=biased, max_tokens=3)).text.startswith("z")
        with pytest.raises(NeuronError) as caught:
            await host.submit("fox", sampling=SamplingParams(logit_bias=((10**6, 1.0),)))
        assert caught.value.param == "logit_bias"


async def test_two_models_of_one_device_answer_at_the_same_time(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": turn("a", repeat=True), "b": turn("b", repeat=True)}) as host:
        answers: dict[str, str] = {}

        async def read(name: str) -> None:
            answers[name] = (await host.ask(name, max_tokens=200)).text

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, "a")
            tasks.start_soon(read, "b")
        assert answers == {"a": "a" * 200, "b": "b" * 200}
