"""A renderer with its child processes, shared by the tests of one module."""

from collections.abc import AsyncIterator

import pytest

from neuron.actors.text.render import Renderer


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def renderer() -> AsyncIterator[Renderer]:
    renderer = Renderer()
    await renderer.start()
    yield renderer
    renderer.close()
