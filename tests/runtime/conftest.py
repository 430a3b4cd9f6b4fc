"""Shared by the runtime's tests: the event loop they run on, and the proof that nothing is left behind."""

import os
from collections.abc import Iterator

import pytest

from neuron.runtime import shm


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No open descriptor and no segment of ours more than before."""
    fds = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == fds
    mine = f"{shm.PREFIX}-{os.getpid()}-"
    assert [name for name in os.listdir(shm.DIRECTORY) if name.startswith(mine)] == []
