"""Collectives over gloo, each rank a thread of this process: sums, gathered columns, who does not come, who leaves."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
import torch

from neuron.actors.device.worker.classify import classify
from neuron.actors.device.worker.fault_table import Verdict
from neuron.kernels.collectives import STAR_BYTES, Group, join

T = TypeVar("T")
WAIT_S = 30.0


def each(count: int, work: Callable[[int], T]) -> list[T]:
    with ThreadPoolExecutor(count) as pool:
        return [future.result(WAIT_S) for future in [pool.submit(work, rank) for rank in range(count)]]


def joined(directory: Path, count: int) -> list[Group]:
    return each(count, lambda rank: join(directory / "store", rank, count, WAIT_S, "cpu"))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_sums_and_columns(tmp_path: Path, count: int) -> None:
    groups = joined(tmp_path, count)
    (tmp_path / "store").unlink(missing_ok=True)  # of no use any more

    def work(rank: int) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        group = groups[rank]
        assert (group.rank, group.world_size, group.sanity()) == (rank, count, count)
        total = torch.arange(1000.0).reshape(10, 100) / (rank + 3)
        group.all_reduce(total)
        large = torch.ones(1 + STAR_BYTES // 4)
        group.all_reduce(large)
        assert large.eq(count).all()
        narrow = torch.full((7,), 0.5, dtype=torch.bfloat16)
        group.all_reduce(narrow)
        assert narrow.eq(count / 2).all()
        parts = [torch.full((rows, 5), float(rank)) for rows in (1, 3)]
        return total, [group.gather_columns(part) for part in parts]

    found = each(count, work)
    expected = sum(torch.arange(1000.0, dtype=torch.float64).reshape(10, 100) / (rank + 3) for rank in range(count))
    assert isinstance(expected, torch.Tensor)
    assert torch.allclose(found[0][0].double(), expected, rtol=1e-6)
    # The same bits everywhere: what follows from them must not differ between ranks.
    assert all(torch.equal(total, found[0][0]) for total, _ in found)
    for rows, gathered in zip((1, 3), found[0][1], strict=True):
        assert gathered is not None
        assert gathered.tolist() == [[float(rank) for rank in range(count) for _ in range(5)]] * rows
    assert all(gathered == [None, None] for _, gathered in found[1:])
    for group in groups:
        group.close()
        group.close()


def test_nobody_else_can_connect(tmp_path: Path) -> None:
    """Sockets of a group listen on loopback alone."""
    before = listening()
    groups = joined(tmp_path, 2)
    new = listening() - before
    assert {address for address, _ in new} <= {"127.0.0.1", "::1"}
    for group in groups:
        group.close()


def listening() -> set[tuple[str, int]]:
    process = psutil.Process(os.getpid())
    return {tuple(entry.laddr) for entry in process.net_connections() if entry.status == psutil.CONN_LISTEN}


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        join(tmp_path / "store", 0, 2, 0.5, "cpu")
    with pytest.raises(ValueError, match="rank 2"):
        join(tmp_path / "store", 2, 2, 0.5, "cpu")


@pytest.mark.parametrize("leaves", [0, 1])
@pytest.mark.parametrize("size", [4, 1 + STAR_BYTES // 4], ids=["sockets", "gloo"])
def test_a_peer_that_is_gone_is_told_as_a_matter_of_the_group(tmp_path: Path, size: int, leaves: int) -> None:
    groups = joined(tmp_path, 2)

    def work(rank: int) -> BaseException | None:
        if rank == leaves:
            groups[rank].close()
            return None
        try:
            groups[rank].all_reduce(torch.ones(size))
        except Exception as error:
            return error
        return None

    error = each(2, work)[1 - leaves]
    assert isinstance(error, RuntimeError)
    assert classify(error).verdict is Verdict.GROUP
    groups[1 - leaves].close()


@pytest.mark.gpu
def test_nccl_on_the_gpus_that_are_there(tmp_path: Path) -> None:
    """Every GPU a rank, one alone included; a sum that is recorded in a graph is one when it is played."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device in this machine")
    count = min(torch.cuda.device_count(), 4)

    def work(rank: int) -> tuple[int, float, list[list[float]] | None]:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        group = join(tmp_path / "store", rank, count, WAIT_S, f"cuda:{rank}")
        sane = group.sanity()
        gathered = group.gather_columns(torch.full((2, 3), float(rank), device=device))
        total = torch.full((4,), rank + 1.0, device=device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            group.all_reduce(total)
        graph.replay()
        torch.cuda.synchronize(device)
        found = float(total[0])
        del graph
        group.close()
        return sane, found, None if gathered is None else gathered.tolist()

    found = each(count, work)
    assert [sane for sane, _, _ in found] == [count] * count
    assert [total for _, total, _ in found] == [count * (count + 1) / 2] * count
    assert found[0][2] == [[float(rank) for rank in range(count) for _ in range(3)]] * 2
    assert [columns for _, _, columns in found[1:]] == [None] * (count - 1)
