"""EventStream: the bounded buffer between one session (writer) and one HTTP handler (reader).

The session puts; the handler reads and may cancel. Neither ever waits for the other without a limit.
"""

import time
from collections import deque
from collections.abc import Callable

import anyio

from neuron.actors.errors import ClientDisconnected, SlowClient
from neuron.actors.events import Failed, Finish, InferenceEvent
from neuron.runtime.errors import NeuronError

#: Events kept for a reader that lags behind; an ordinary answer fits whole, so the model is free long before.
CAPACITY = 4096


class EventStream:
    """One writer, one reader. Implements `actors.daemon.InferenceStream` for the reader."""

    def __init__(self, write_idle_s: float, capacity: int = CAPACITY) -> None:
        self._buffer: deque[InferenceEvent] = deque()
        self._capacity = capacity
        self._write_idle_s = write_idle_s
        self._last_read = time.monotonic()
        self._arrived = anyio.Event()
        self._room = anyio.Event()
        #: Why the session shall end before its natural end; set once. The session looks between units of device work.
        self.wanted_end: NeuronError | None = None
        #: True once Finish or Failed was put.
        self.ended = False
        #: True once nobody reads any more.
        self._gone = False
        #: Called when an early end is asked for, so that a session that waits in the queue leaves it at once.
        self.on_wanted_end: Callable[[], None] | None = None

    # -- the reader's end ----------------------------------------------------------------------

    async def next(self, wait_s: float) -> InferenceEvent | None:
        """The next event, or None after `wait_s` seconds without one."""
        self._last_read = time.monotonic()
        if not self._buffer:
            with anyio.move_on_after(wait_s):
                await self._arrived.wait()
        self._last_read = time.monotonic()
        if not self._buffer:
            return None
        event = self._buffer.popleft()
        if not self._buffer and not self.ended:
            self._arrived = anyio.Event()
        self._room.set()
        return event

    def cancel(self, reason: str = ClientDisconnected.code) -> None:
        """The reader left, or was cut for not reading (`reason` slow_client): no delta is kept for it any more, and
        the session ends at its next look."""
        if self.ended:
            return
        self._gone = True
        self._buffer.clear()
        self._arrived = anyio.Event()
        if reason == SlowClient.code:
            self.end_early(SlowClient("The client stopped reading its stream."))
        else:
            self.end_early(ClientDisconnected(f"The client left ({reason})."))

    # -- the session's end ---------------------------------------------------------------------

    def end_early(self, error: NeuronError) -> None:
        """Ask the session to stop with `error`. The first cause wins; after the end it does nothing."""
        if self.ended or self.wanted_end is not None:
            return
        self.wanted_end = error
        self._room.set()
        if self.on_wanted_end is not None:
            self.on_wanted_end()

    def check(self) -> None:
        """Raises what the session was asked to end with, if anything."""
        if self.wanted_end is not None:
            raise self.wanted_end

    async def put(self, event: InferenceEvent) -> None:
        """Hand over one event.

        Raises SlowClient when the reader took nothing for the write-idle limit while events lay ready, and
        whatever `end_early` was called with.
        """
        self.check()
        if self._buffer and time.monotonic() - self._last_read > self._write_idle_s:
            raise SlowClient("The client stopped reading its stream.")
        while len(self._buffer) >= self._capacity:
            self._room = anyio.Event()
            with anyio.move_on_after(self._write_idle_s) as limit:
                await self._room.wait()
            self.check()
            if limit.cancelled_caught:
                raise SlowClient("The client stopped reading its stream.")
        self.put_now(event)

    def put_now(self, event: InferenceEvent) -> None:
        """Hand over one event without looking at the bound (the terminal event and queue positions)."""
        if self.ended:
            return
        if isinstance(event, Finish | Failed):
            self.ended = True
        elif self._gone:
            return
        if not self._buffer:
            self._last_read = time.monotonic()
        self._buffer.append(event)
        self._arrived.set()
