"""The image jobs in the worker's loop (level 1): pixels, places, refusals, and what an early end leaves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuron.actors.device import jobs
from neuron.actors.device.jobs import ArchHandle, Done, Fault, Sequence
from neuron.runtime.shm import ByteSegment
from tests.harness.level1 import Driver, InProcessWorker
from tests.harness.scripts import turn, write_script

pytestmark = pytest.mark.usefixtures("nothing_left")
SEQUENCE = Sequence(0)
GRID = (1, 4, 2)
PLACES = 2


@pytest.fixture
def worker() -> Iterator[InProcessWorker]:
    with InProcessWorker() as held:
        yield held


@pytest.fixture
def driver(worker: InProcessWorker, tmp_path: Path) -> Iterator[Driver]:
    path = write_script(tmp_path, "eyes", turn("seen"), capabilities=["text", "vision"])
    made = Driver(worker, str(path), handle=1)
    yield made
    made.close()


def encode(worker: InProcessWorker, image: int = 5, nbytes: int = 8 * 768, grid: Any = GRID) -> Any:
    pixels = ByteSegment.create(nbytes)
    try:
        return worker.ask(lambda job: jobs.EncodeImage(job, ArchHandle(1), image, pixels.name, grid))
    finally:
        pixels.close()


def step(worker: InProcessWorker, count: int, spans: Any, position: int = 0, positions: bytes | None = None) -> Any:
    tokens = np.full(count, 65, dtype="<i4").tobytes()
    turned = np.zeros((3, count), dtype="<i4").tobytes() if positions is None else positions
    return worker.ask(
        lambda job: jobs.ForwardLogitsWithImages(
            job, ArchHandle(1), SEQUENCE, tokens, position, None, 0, spans, turned, 0
        )
    )


def test_an_image_is_encoded_and_passed_over(worker: InProcessWorker, driver: Driver) -> None:
    encoded = encode(worker)
    assert isinstance(encoded, Done)
    assert encoded.value == PLACES
    assert isinstance(step(worker, 2, ((5, 1, PLACES),)), Done)
    assert isinstance(step(worker, 2, ((5, 1, PLACES),), position=2), Done)
    fault = step(worker, 2, ((5, 3, PLACES),), position=4)
    assert isinstance(fault, Fault)
    assert not fault.device_fault


@pytest.mark.parametrize("grid", [(1, 0, 2), (1, 3, 5), (2, 4, 2), (1, 1, 1)])
def test_pixels_that_do_not_fit_fail_the_job_alone(worker: InProcessWorker, driver: Driver, grid: Any) -> None:
    fault = encode(worker, grid=grid)
    assert isinstance(fault, Fault)
    assert not fault.device_fault
    assert isinstance(encode(worker), Done)


def test_rotary_positions_of_another_length(worker: InProcessWorker, driver: Driver) -> None:
    fault = step(worker, 2, (), positions=b"\0" * 12)
    assert isinstance(fault, Fault)
    assert not fault.device_fault


def test_an_image_goes_with_its_sequence(worker: InProcessWorker, driver: Driver) -> None:
    assert isinstance(encode(worker), Done)
    driver.clear()
    assert isinstance(step(worker, 3, ((5, 0, PLACES),)), Fault)
