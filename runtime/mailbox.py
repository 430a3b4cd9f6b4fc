"""An actor's bounded queue of envelopes and the slot that carries an answer back. Used by `runtime.actor` only."""

from collections import deque
from typing import Generic, TypeVar

import anyio

from neuron.runtime.errors import MailboxFull, NeuronError

M = TypeVar("M")


class ReplySlot:
    """Holds one answer or error for one waiting caller. What is set first stays."""

    __slots__ = ("_error", "_ready", "_value", "abandoned")

    def __init__(self) -> None:
        self._ready = anyio.Event()
        self._value: object = None
        self._error: Exception | None = None
        #: The caller left; an envelope not yet begun is skipped.
        self.abandoned = False

    @property
    def is_set(self) -> bool:
        return self._ready.is_set()

    def answer(self, value: object) -> None:
        if not self._ready.is_set():
            self._value = value
            self._ready.set()

    def fail(self, error: Exception) -> None:
        if not self._ready.is_set():
            self._error = error
            self._ready.set()

    async def wait(self) -> object:
        await self._ready.wait()
        if self._error is not None:
            # One error may go to many callers; without this each raise would make its traceback longer.
            raise self._error.with_traceback(None)
        return self._value


class Envelope(Generic[M]):
    """A message, and where its answer goes (None for a `tell`)."""

    __slots__ = ("message", "reply")

    def __init__(self, message: M, reply: ReplySlot | None) -> None:
        self.message = message
        self.reply = reply


class Mailbox(Generic[M]):
    """First in, first out, at most `size` envelopes. Closed once, with the error that later senders get."""

    def __init__(self, size: int) -> None:
        if size <= 0:
            raise ValueError("a mailbox holds at least one message")
        self._size = size
        self._queue: deque[Envelope[M]] = deque()
        self._arrived = anyio.Event()
        self._closed_by: NeuronError | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def closed_by(self) -> NeuronError | None:
        return self._closed_by

    def put(self, envelope: Envelope[M]) -> None:
        """Raises MailboxFull, or the error that closed the mailbox."""
        if self._closed_by is not None:
            raise self._closed_by.with_traceback(None)
        if len(self._queue) >= self._size:
            raise MailboxFull("Too many requests are waiting; try again shortly.")
        self._queue.append(envelope)
        self._arrived.set()

    async def get(self) -> Envelope[M] | None:
        """The next envelope whose caller still waits; None once the mailbox is closed."""
        while True:
            while self._queue:
                envelope = self._queue.popleft()
                if envelope.reply is None or not envelope.reply.abandoned:
                    return envelope
            if self._closed_by is not None:
                return None
            self._arrived = anyio.Event()
            await self._arrived.wait()

    def discard(self, envelope: Envelope[M]) -> None:
        """Take an envelope whose caller left out of the queue, so that it fills no place."""
        try:
            self._queue.remove(envelope)
        except ValueError:
            pass  # already taken out

    def close(self, error: NeuronError) -> None:
        """Fail everything queued with `error`, and everything sent from now on. The first close wins."""
        if self._closed_by is not None:
            return
        self._closed_by = error
        waiting, self._queue = self._queue, deque()
        for envelope in waiting:
            if envelope.reply is not None:
                envelope.reply.fail(error)
        self._arrived.set()
