"""The stream between session and handler: order, cancel from either side, the idle limit, and no busy waiting."""

import anyio
import pytest

from neuron.actors.errors import ClientDisconnected, SlowClient
from neuron.actors.events import Failed, Finish, FinishReason, TextDelta, Timings, Usage
from neuron.actors.stream import EventStream
from neuron.runtime.errors import ShuttingDown

pytestmark = pytest.mark.anyio
END = Finish(FinishReason.STOP, Usage(1, 1), Timings(0, 0, 0, 1, 1))


def text(value: str) -> TextDelta:
    return TextDelta(value)


async def test_events_arrive_in_order_and_silence_is_none() -> None:
    stream = EventStream(1.0)
    assert await stream.next(0.01) is None
    await stream.put(text("a"))
    await stream.put(text("b"))
    stream.put_now(END)
    assert [await stream.next(1) for _ in range(3)] == [text("a"), text("b"), END]


async def test_nothing_follows_the_end() -> None:
    stream = EventStream(1.0)
    stream.put_now(END)
    stream.put_now(Failed(ShuttingDown("late")))
    stream.end_early(ShuttingDown("late"))
    stream.cancel()
    assert stream.wanted_end is None
    assert await stream.next(1) == END


async def test_a_reader_that_left_gets_no_delta_but_can_still_see_the_end() -> None:
    stream = EventStream(1.0)
    woken: list[bool] = []
    stream.on_wanted_end = lambda: woken.append(True)
    await stream.put(text("a"))
    stream.cancel()
    stream.cancel()
    assert woken == [True]
    with pytest.raises(ClientDisconnected):
        await stream.put(text("b"))
    stream.put_now(text("c"))
    assert await stream.next(0.01) is None
    error = stream.wanted_end
    assert error is not None
    stream.put_now(Failed(error))
    assert await stream.next(1) == Failed(error)


async def test_a_reader_that_was_cut_is_told_from_one_that_left() -> None:
    stream = EventStream(1.0)
    stream.cancel(SlowClient.code)
    assert isinstance(stream.wanted_end, SlowClient)
    stream.put_now(text("a"))
    assert await stream.next(0.01) is None


async def test_the_first_cause_wins() -> None:
    stream = EventStream(1.0)
    stream.end_early(ShuttingDown("first"))
    stream.cancel()
    assert isinstance(stream.wanted_end, ShuttingDown)


async def test_a_reader_that_is_merely_slow_is_waited_for() -> None:
    stream = EventStream(5.0, capacity=2)
    seen: list[object] = []

    async def read() -> None:
        for _ in range(6):
            await anyio.sleep(0.01)
            seen.append(await stream.next(1))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        for number in range(6):
            await stream.put(text(str(number)))
            assert len(stream._buffer) <= 2
    assert seen == [text(str(number)) for number in range(6)]


@pytest.mark.parametrize("capacity", [1, 1000])
async def test_a_reader_that_stalls_is_cut_full_or_not(capacity: int) -> None:
    stream = EventStream(0.05, capacity=capacity)
    await stream.put(text("a"))
    await anyio.sleep(0.06)
    with pytest.raises(SlowClient):
        await stream.put(text("b"))


async def test_a_session_that_waits_for_room_hears_of_an_early_end() -> None:
    stream = EventStream(60.0, capacity=1)
    await stream.put(text("a"))
    async with anyio.create_task_group() as tasks:

        async def end() -> None:
            stream.end_early(ShuttingDown("stop"))

        tasks.start_soon(end)
        with pytest.raises(ShuttingDown):
            await stream.put(text("b"))


async def test_silence_of_the_session_is_not_held_against_the_reader() -> None:
    stream = EventStream(0.05)
    await anyio.sleep(0.1)
    await stream.put(text("a"))
    await stream.put(text("b"))
