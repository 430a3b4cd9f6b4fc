"""Waiting for all ranks at once, in a load that may be cancelled at any moment."""

import asyncio

import anyio
import pytest

from neuron.actors.group.group import _all_of

pytestmark = pytest.mark.anyio


async def at_once() -> int:
    return 1


async def until_cancelled() -> None:
    await asyncio.get_running_loop().create_future()


async def failing_when_cancelled() -> None:
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        raise ValueError("it was ending just then") from None


async def test_results_in_order_and_the_first_error() -> None:
    assert await _all_of([at_once(), at_once()]) == [1, 1]

    async def fails(text: str) -> None:
        raise ValueError(text)

    with pytest.raises(ValueError, match="first"):
        await _all_of([at_once(), fails("first"), fails("second")])


@pytest.mark.parametrize("last", [until_cancelled, failing_when_cancelled])
async def test_a_cancelled_wait_ends_with_its_own_scope(last: object) -> None:
    """A cancellation that nobody's scope knows ends the group of tasks that it reaches: in the end, the daemon."""
    assert callable(last)
    survived = False
    async with anyio.create_task_group() as daemon:
        load, begun = anyio.CancelScope(), anyio.Event()

        async def run() -> None:
            with load:
                begun.set()
                await _all_of([at_once(), until_cancelled(), last()])

        daemon.start_soon(run)
        await begun.wait()
        await anyio.sleep(0.01)
        load.cancel()
        await anyio.sleep(0.01)
        survived = True
    assert survived
