"""Group: the collectives of one tensor-parallel group. Joined by each rank's device process.

torch.distributed: NCCL on GPUs, gloo on CPUs, where all but large tensors go over local sockets, which are far quicker.
Rendezvous in a private directory, TCP on the loopback interface only. What the libraries raise is left as it is: the
device process has the table that classifies it.
"""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from neuron.kernels.local_ranks import Star, meet

#: Its stubs lack most of what is used here.
dist: Any = torch.distributed
_SOCKET = "tensors"
LOOPBACK = "lo"
#: How long one collective may wait for its peers. The daemon watches deadlines and ends processes long before; this
#: only keeps an orphan from waiting for ever.
COLLECTIVE_SECONDS = 3600.0
#: On a CPU, larger tensors are summed by gloo in a ring, in which no rank's memory is read by all others.
STAR_BYTES = 4 << 20


class Group:
    """One rank's end. Not thread safe; every rank makes the same calls in the same order, with the same shapes."""

    def __init__(
        self, backend: Any, rank: int, world_size: int, device: torch.device, star: Star | None = None
    ) -> None:
        """`star`: the way of tensors on the host."""
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self._backend: Any = backend
        self._star = star
        self._limit = timedelta(seconds=COLLECTIVE_SECONDS)

    def begin(self) -> None:
        """Collectives wait for their peers by themselves."""

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replace `tensor` (contiguous, same shape on every rank) by the sum over the ranks.

        Raises RuntimeError (RankGoneError, gloo) or DistBackendError (NCCL) when a peer is gone.
        """
        if self._star is not None and tensor.nbytes <= STAR_BYTES:
            self._star.all_reduce(tensor)
        else:
            self._all_reduce(tensor)

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        options = dist.AllreduceOptions()
        options.timeout = self._limit
        self._backend.allreduce([tensor], options).wait()

    def gather_columns(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """`tensor` [n, part], equally wide on each rank -> [n, world_size * part] in rank order on rank 0, else None.

        Raises as `all_reduce` does.
        """
        part = tensor.contiguous()
        if self._star is not None:
            return self._star.gather_columns(part)
        options = dist.GatherOptions()
        options.rootRank = 0
        options.timeout = self._limit
        if self.rank != 0:
            self._backend.gather([], [part], options).wait()
            return None
        rows, width = part.shape
        if rows == 1:  # The parts of a single row lie one behind the other already.
            whole = part.new_empty(1, width * self.world_size)
            parts = [whole[:, rank * width : (rank + 1) * width] for rank in range(self.world_size)]
            self._backend.gather([parts], [part], options).wait()
            return whole
        parts = [torch.empty_like(part) for _ in range(self.world_size)]
        self._backend.gather([parts], [part], options).wait()
        return torch.cat(parts, dim=1)

    def sanity(self) -> int:
        """An all-reduce of 1 on every way that tensors take: the world size when the group works."""
        one = torch.ones(2, device=self.device)
        self.all_reduce(one[:1])
        self._all_reduce(one[1:])
        return int(one.min().item())

    def close(self) -> None:
        """Give sockets and buffers back. Peers that still wait in a collective get an error. Idempotent."""
        backend, self._backend = self._backend, None
        if self._star is not None:
            self._star.close()
        if backend is not None and hasattr(backend, "abort"):
            backend.abort()


def join(store: Path, rank: int, world_size: int, timeout_s: float, device: str) -> Group:
    """Meet the other ranks; `store` names a file in a directory that only they use. Blocks until all are in.

    Raises RuntimeError or DistBackendError past `timeout_s` seconds. The file is of no use once every rank is in.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}")
    deadline = time.monotonic() + timeout_s
    limit = timedelta(seconds=timeout_s)
    meeting = dist.FileStore(str(store), world_size)
    meeting.set_timeout(limit)
    if torch.device(device).type == "cuda":
        return Group(_nccl(meeting, rank, world_size, limit), rank, world_size, torch.device(device))
    backend = _gloo(meeting, rank, world_size, limit)
    left = max(1.0, deadline - time.monotonic())
    try:
        peers = meet(store.with_name(_SOCKET), rank, world_size, left)
    except OSError as error:
        raise RuntimeError(f"rank {rank} of {world_size} did not find its peers") from error
    return Group(backend, rank, world_size, torch.device("cpu"), Star(peers, rank, world_size))


def _gloo(store: Any, rank: int, world_size: int, limit: timedelta) -> Any:
    gloo = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(interface=LOOPBACK)]
    options._timeout = limit
    options._threads = 1
    return gloo(store, rank, world_size, options)


def _nccl(store: Any, rank: int, world_size: int, limit: timedelta) -> Any:
    # Read when the library makes its first communicator. Data goes over NVLink, PCIe or shared memory; only the
    # meeting needs an address, and it is nobody else's business.
    os.environ.setdefault("NCCL_SOCKET_IFNAME", LOOPBACK)
    os.environ.setdefault("NCCL_IB_DISABLE", "1")
    nccl = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = limit
    return nccl(store, rank, world_size, options)
