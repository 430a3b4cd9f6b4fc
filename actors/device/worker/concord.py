"""Concord: the ranks of a tensor-parallel group agree on each job before they begin its collectives. Needs no torch.

Sockets in the group's private directory, in a star around rank 0. A rank that cannot begin says so, and nobody is left
waiting in a collective for it; a rank that was given something else than its peers is found before it computes.
"""

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Self

_FRAME = struct.Struct("<IBI")
_HELLO = struct.Struct("<I")
_NAME = "control"
_RETRY_SECONDS = 0.02
_LONGEST_ADDRESS = 100


class PeerLostError(Exception):
    """A rank of the group is gone: its process ended, or it closed its end."""

    def __init__(self) -> None:
        super().__init__("a rank of the group is gone")


class PeerFailedError(Exception):
    """Another rank could not begin the job and has said why; this one is well."""


class DivergenceError(Exception):
    """The ranks of the group were given, or hold, different things."""


class JoinError(Exception):
    """The ranks did not find each other in time."""


class Status(IntEnum):
    READY = 0
    FAILED = 1
    DIVERGED = 2


@dataclass(frozen=True, slots=True)
class _Said:
    """A frame: followers say their digest, rank 0 answers with a verdict that names a rank."""

    serial: int
    status: Status
    number: int


@dataclass(slots=True)
class Concord:
    """One rank's end. Every rank counts the agreements alike; frames of one that is over are passed over."""

    rank: int
    world_size: int
    #: By rank: rank 0 has all others, the others have rank 0.
    _peers: dict[int, socket.socket]
    _serial: int = 0
    _read: dict[int, bytes] = field(default_factory=dict)
    _inbox: dict[int, list[_Said]] = field(default_factory=dict)

    @classmethod
    def join(cls, directory: Path, rank: int, world_size: int, timeout_s: float) -> Self:
        """Meet the other ranks in `directory`. Raises JoinError past `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        try:
            peers = _gather(directory, world_size, deadline) if rank == 0 else {0: _find(directory, rank, deadline)}
        except OSError as error:
            raise JoinError(f"rank {rank} of {world_size} did not find its peers: {error}") from error
        for peer in peers.values():
            peer.settimeout(None)
        return cls(rank, world_size, peers)

    # -- agreements ------------------------------------------------------------------------------

    def agree(self, digest: int) -> None:
        """Wait for all ranks; returns when all are ready for the job of this digest.

        Raises PeerFailedError, DivergenceError, PeerLostError.
        """
        self._serial += 1
        verdict = self._judge(digest) if self.rank == 0 else self._ask(digest)
        if verdict.status is Status.FAILED:
            raise PeerFailedError(f"rank {verdict.number} could not begin the job")
        if verdict.status is Status.DIVERGED:
            raise DivergenceError(f"rank {verdict.number} was given another job than rank 0")

    def fail(self) -> None:
        """In place of `agree`: this rank cannot begin the job. Waits for nobody."""
        self._serial += 1
        with contextlib.suppress(PeerLostError):
            self._send_all(_Said(self._serial, Status.FAILED, self.rank))

    def check(self) -> None:
        """During a long job, before its agreement: raises what `agree` would raise by now, and returns at once."""
        ready, _, _ = select.select(list(self._peers.values()), [], [], 0)
        for rank, peer in self._peers.items():
            if peer in ready:
                self._receive(rank, flags=socket.MSG_DONTWAIT)
            for said in self._inbox.get(rank, ()):
                if said.serial == self._serial + 1 and said.status is Status.FAILED:
                    raise PeerFailedError(f"rank {said.number} could not begin the job")

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()

    # -- rank 0 and the others -------------------------------------------------------------------

    def _judge(self, digest: int) -> _Said:
        verdict = _Said(self._serial, Status.READY, 0)
        for rank in self._peers:
            said = self._await(rank)
            if said.status is Status.FAILED:
                verdict = _Said(self._serial, Status.FAILED, rank)
            elif said.number != digest and verdict.status is Status.READY:
                verdict = _Said(self._serial, Status.DIVERGED, rank)
        self._send_all(verdict)
        return verdict

    def _ask(self, digest: int) -> _Said:
        self._send_all(_Said(self._serial, Status.READY, digest))
        return self._await(0)

    def _await(self, rank: int) -> _Said:
        """What the peer says in this agreement."""
        while True:
            inbox = self._inbox.setdefault(rank, [])
            while inbox:
                said = inbox.pop(0)
                if said.serial == self._serial:
                    return said
                if said.serial > self._serial:
                    raise DivergenceError(f"rank {rank} is at another job than rank {self.rank}")
            self._receive(rank)

    # -- frames ----------------------------------------------------------------------------------

    def _send_all(self, said: _Said) -> None:
        frame = _FRAME.pack(said.serial, said.status, said.number)
        try:
            for peer in self._peers.values():
                peer.sendall(frame)
        except OSError as error:
            raise PeerLostError from error

    def _receive(self, rank: int, flags: int = 0) -> None:
        try:
            data = self._peers[rank].recv(4096, flags)
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerLostError from error
        if not data:
            raise PeerLostError
        data = self._read.get(rank, b"") + data
        whole = len(data) - len(data) % _FRAME.size
        for serial, status, number in _FRAME.iter_unpack(data[:whole]):
            self._inbox.setdefault(rank, []).append(_Said(serial, Status(status), number))
        self._read[rank] = data[whole:]


@contextlib.contextmanager
def _address(directory: Path) -> Iterator[str]:
    """The socket's path, also where it is longer than an address may be."""
    path = str(directory / _NAME)
    if len(path.encode()) <= _LONGEST_ADDRESS:
        yield path
        return
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{_NAME}"
    finally:
        os.close(descriptor)


def _gather(directory: Path, world_size: int, deadline: float) -> dict[int, socket.socket]:
    """Rank 0: the others come; all are told once all are there."""
    peers: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            with _address(directory) as address:
                listener.bind(address)
            listener.listen(world_size)
            while len(peers) < world_size - 1:
                listener.settimeout(_left(deadline))
                peer, _ = listener.accept()
                peer.settimeout(_left(deadline))
                (rank,) = _HELLO.unpack(_exactly(peer, _HELLO.size))
                if not 0 < rank < world_size or rank in peers:
                    peer.close()
                    raise OSError(f"a second rank {rank} of {world_size}")
                peers[rank] = peer
            for peer in peers.values():
                peer.sendall(_HELLO.pack(0))
        except BaseException:
            for peer in peers.values():
                peer.close()
            raise
    return dict(sorted(peers.items()))


def _find(directory: Path, rank: int, deadline: float) -> socket.socket:
    """The others: connect to rank 0, which may not be there yet, and wait until all are."""
    while True:
        leader = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            leader.settimeout(_left(deadline))
            with _address(directory) as address:
                leader.connect(address)
            leader.sendall(_HELLO.pack(rank))
            leader.settimeout(_left(deadline))
            _exactly(leader, _HELLO.size)
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
