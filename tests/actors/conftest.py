"""Shared by the actor tests: the event loop they run on."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
