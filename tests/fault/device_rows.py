"""What the rows at the device actor share: arming failpoints, a neighbour that must not notice, the cure."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.harness.invariants import gone
from tests.harness.level2 import Device, device


def arm(path: Path, *entries: dict[str, object]) -> Path:
    path.write_text(json.dumps(entries))
    return path


@asynccontextmanager
async def beside(path: Path) -> AsyncIterator[None]:
    """A second device with a model, which must not notice anything: asked at the end of the block."""
    async with device("cpu:1") as second:
        model = await second.model(path)
        assert await model.generate(b"hi", 2) == [ord("x"), ord("y")]
        pid = second.pid
        yield
        assert await model.generate(b"hi", 2) == [ord("x"), ord("y")]
        assert second.pid == pid
        assert second.deaths == []
        await model.drop()


async def cured(held: Device, path: Path, old_pid: int) -> None:
    """Loading again gives a fresh process that answers."""
    model = await held.model(path)
    assert held.pid != old_pid
    assert gone(old_pid)
    assert await model.generate(b"hi", 3) == [97, 98, 99]
    await model.drop()
