"""Sockets between the ranks of a group on one host, in a star around rank 0: meeting, and sums over them.

A wake-up of the one process that is waited for is all that a sum costs; the libraries' threads cost several each.
Imports torch for types only: what agrees on jobs (actors.device.worker.concord) meets here too.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_RANK_BYTES = 4
_RETRY_SECONDS = 0.02
_LONGEST_ADDRESS = 100


class RankGoneError(RuntimeError):
    """A rank of the group has ended, or closed its end."""

    def __init__(self) -> None:
        super().__init__("a rank of the group is gone")


def meet(path: Path, rank: int, world_size: int, timeout_s: float) -> dict[int, socket.socket]:
    """The other ranks, for rank 0; rank 0, for the others. `path`: a socket in a directory that only they can enter.

    Blocks until all are in. Raises OSError (TimeoutError past `timeout_s` seconds).
    """
    deadline = time.monotonic() + timeout_s
    peers = _gather(path, world_size, deadline) if rank == 0 else {0: _find(path, rank, deadline)}
    for peer in peers.values():
        peer.settimeout(None)
    return peers


class Star:
    """Sums and gathered columns over the sockets of `meet`. Not thread safe; all ranks make the same calls."""

    def __init__(self, peers: dict[int, socket.socket], rank: int, world_size: int) -> None:
        self._peers, self._rank, self._world_size = peers, rank, world_size

    def all_reduce(self, tensor: "torch.Tensor") -> None:
        """`tensor` (contiguous, on the host) becomes the sum over the ranks in their order: everywhere the same bits.

        Raises RankGoneError.
        """
        if self._rank != 0:
            self._send(0, tensor)
            self._receive(0, tensor)
            return
        part = tensor.new_empty(tensor.shape)
        for rank in self._peers:
            self._receive(rank, part)
            tensor += part
        for rank in self._peers:
            self._send(rank, tensor)

    def gather_columns(self, part: "torch.Tensor") -> "torch.Tensor | None":
        """As Collectives.gather_columns. Raises RankGoneError."""
        if self._rank != 0:
            self._send(0, part)
            return None
        rows, width = part.shape
        whole = part.new_empty(self._world_size, rows, width)
        whole[0] = part
        for rank in self._peers:
            self._receive(rank, whole[rank])
        return whole.transpose(0, 1).reshape(rows, self._world_size * width)

    def close(self) -> None:
        for peer in self._peers.values():
            # What a peer still waits for ends at once, whoever else holds the descriptor.
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()

    def _send(self, rank: int, tensor: "torch.Tensor") -> None:
        try:
            self._peers[rank].sendall(_bytes_of(tensor))
        except OSError as error:
            raise RankGoneError from error

    def _receive(self, rank: int, tensor: "torch.Tensor") -> None:
        view = _bytes_of(tensor)
        try:
            while view:
                count = self._peers[rank].recv_into(view, len(view), socket.MSG_WAITALL)
                if count == 0:
                    raise RankGoneError
                view = view[count:]
        except OSError as error:
            raise RankGoneError from error


def _bytes_of(tensor: "torch.Tensor") -> memoryview:
    """The tensor's own memory."""
    import torch

    return tensor.detach().view(-1).view(torch.uint8).numpy().data


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """The socket's path, also where it is longer than an address may be."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        yield str(path)
        return
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


def _gather(path: Path, world_size: int, deadline: float) -> dict[int, socket.socket]:
    """Rank 0: the others come; all are told once all are there."""
    peers: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            with _address(path) as address:
                listener.bind(address)
            listener.listen(world_size)
            while len(peers) < world_size - 1:
                listener.settimeout(_left(deadline))
                peer, _ = listener.accept()
                peer.settimeout(_left(deadline))
                rank = int.from_bytes(_exactly(peer, _RANK_BYTES), "little")
                if not 0 < rank < world_size or rank in peers:
                    peer.close()
                    raise OSError(f"a second rank {rank} of {world_size}")
                peers[rank] = peer
            for peer in peers.values():
                peer.sendall(bytes(_RANK_BYTES))
        except BaseException:
            for peer in peers.values():
                peer.close()
            raise
    return dict(sorted(peers.items()))


def _find(path: Path, rank: int, deadline: float) -> socket.socket:
    """The others: connect to rank 0, which may not be there yet, and wait until all are."""
    while True:
        leader = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            leader.settimeout(_left(deadline))
            with _address(path) as address:
                leader.connect(address)
            leader.sendall(rank.to_bytes(_RANK_BYTES, "little"))
            leader.settimeout(_left(deadline))
            _exactly(leader, _RANK_BYTES)
            return leader
        except (FileNotFoundError, ConnectionRefusedError):
            leader.close()
            time.sleep(min(_RETRY_SECONDS, _left(deadline)))
        except BaseException:
            leader.close()
            raise


def _exactly(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = peer.recv(count - len(data))
        if not more:
            raise OSError("a peer closed its end")
        data += more
    return data


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("time is over")
    return left
