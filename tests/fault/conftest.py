"""Shared by the device tests: the event loop they run on, and the proof that nothing is left behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.invariants import Resources, assert_nothing_left
from tests.harness.scripts import turn, write_script


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def nothing_left() -> Iterator[None]:
    before = Resources.now()
    yield
    assert_nothing_left(before, within_s=2.0)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_script(tmp_path, "plain", turn("a", "b", "c", repeat=True))


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return write_script(tmp_path, "other", turn("x", "y", repeat=True))
