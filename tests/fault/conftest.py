"""Shared by the device tests: the event loop they run on, and the proof that nothing is left behind."""

from collections.abc import Iterator

import pytest

from tests.harness.invariants import Resources, assert_nothing_left


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def nothing_left() -> Iterator[None]:
    before = Resources.now()
    yield
    assert_nothing_left(before, within_s=2.0)
