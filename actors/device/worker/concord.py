"""Concord: the ranks of a tensor-parallel group agree on each job before they begin its collectives. Needs no torch.

Sockets in the group's private directory, in a star around rank 0. A rank that cannot begin says so, and nobody is left
waiting in a collective for it; a rank that was given something else than its peers is found before it computes.
"""

import contextlib
import select
import socket
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Self

from neuron.kernels.local_ranks import RankGoneError, meet

_FRAME = struct.Struct("<QBI")
_NAME = "control"


class PeerFailedError(Exception):
    """Another rank could not begin the job and has said why; this one is well."""


class DivergenceError(Exception):
    """The ranks of the group were given, or hold, different things. `own`: this rank is the one that differs."""

    def __init__(self, text: str, *, own: bool = False) -> None:
        super().__init__(text)
        self.own = own


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
        try:
            return cls(rank, world_size, meet(directory / _NAME, rank, world_size, timeout_s))
        except OSError as error:
            raise JoinError(f"rank {rank} of {world_size} did not find its peers: {error}") from error

    # -- agreements ------------------------------------------------------------------------------

    def agree(self, digest: int) -> None:
        """Wait for all ranks; returns when all are ready for the job of this digest.

        Raises PeerFailedError, DivergenceError, RankGoneError.
        """
        self._serial += 1
        verdict = self._judge(digest) if self.rank == 0 else self._ask(digest)
        if verdict.status is Status.FAILED:
            raise PeerFailedError(f"rank {verdict.number} could not begin the job")
        if verdict.status is Status.DIVERGED:
            own = verdict.number == self.rank
            raise DivergenceError(f"rank {verdict.number} was given another job than rank 0", own=own)

    def fail(self) -> None:
        """In place of `agree`: this rank cannot begin the job. Waits for nobody."""
        self._serial += 1
        with contextlib.suppress(RankGoneError):
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
            raise RankGoneError from error

    def _receive(self, rank: int, flags: int = 0) -> None:
        try:
            data = self._peers[rank].recv(4096, flags)
        except BlockingIOError:
            return
        except OSError as error:
            raise RankGoneError from error
        if not data:
            raise RankGoneError
        data = self._read.get(rank, b"") + data
        whole = len(data) - len(data) % _FRAME.size
        for serial, status, number in _FRAME.iter_unpack(data[:whole]):
            self._inbox.setdefault(rank, []).append(_Said(serial, Status(status), number))
        self._read[rank] = data[whole:]
