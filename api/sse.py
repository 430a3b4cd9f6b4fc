"""Server-sent events: turns an InferenceStream into frames that are never silent for more than a second.

Nothing here waits at the end: when the client leaves, the handler is cancelled and the edge cancels the stream.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import msgspec
from quart import Response

from neuron.actors.daemon import InferenceStream, LoadOutcome, LoadProgress
from neuron.actors.events import Failed, Finish, InferenceEvent, Queued
from neuron.api.errors import error_bytes, public
from neuron.api.wire.encoding import comment, frame
from neuron.runtime.errors import NeuronError
from neuron.runtime.logs import get_logger

_log = get_logger("neuron.api")
#: Longest silence on a stream, in seconds; proxies and clients give up on connections that say nothing.
PING_S = 1.0
#: Longest wait for one event of an answer that is not streamed; only bounds a single call, not the answer.
_PATIENCE_S = 60.0
_ENCODER = msgspec.json.Encoder()

Steps = AsyncIterator[LoadProgress | LoadOutcome]
NoteError = Callable[[NeuronError], None]
"""Hears of the error that a stream ends with, for the metrics."""


def _ignore(_error: NeuronError) -> None:
    return


class Projection(Protocol):
    """ChatStream and ResponsesStream."""

    ended: bool

    def start(self) -> bytes: ...

    def push(self, event: InferenceEvent) -> bytes: ...


def event_stream(frames: AsyncIterator[bytes]) -> Response:
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    response = Response(frames, content_type="text/event-stream", headers=headers)
    # The framework's own limit covers the whole answer and cuts it without a word.
    response.timeout = None
    return response


async def inference_frames(
    stream: InferenceStream, projection: Projection, note_error: NoteError = _ignore
) -> AsyncIterator[bytes]:
    """The opening frame at once, then each event as it comes; ends with the first Finish or Failed."""
    yield projection.start()
    sent_at = time.monotonic()
    queued: tuple[Queued, float] | None = None
    while not projection.ended:
        try:
            event = await stream.next(max(0.0, PING_S - (time.monotonic() - sent_at)))
            if event is None:
                frames = _ping(queued)
            else:
                queued = (event, time.monotonic()) if isinstance(event, Queued) else None
                frames = projection.push(event)
                if isinstance(event, Failed):
                    note_error(event.error)
        except Exception as error:
            _log.error("stream failed", exc_info=error)
            note_error(public(error))
            yield frame(error_bytes(public(error)))
            return
        if frames:
            sent_at = time.monotonic()
            yield frames


async def collect(stream: InferenceStream, push: Callable[[InferenceEvent], Any]) -> None:
    """Feeds every event of one answer to `push`, up to and including Finish or Failed."""
    while True:
        event = await stream.next(_PATIENCE_S)
        if event is None:
            continue
        push(event)
        if isinstance(event, Finish | Failed):
            return


def _ping(queued: tuple[Queued, float] | None) -> bytes:
    if queued is None:
        return comment("ping")
    entry, since = queued
    return comment(f"queued, position {entry.position}, waited {entry.waited_s + time.monotonic() - since:.0f} s")


class LoadSteps:
    """Reads a load's progress with a time limit, which never disturbs the load itself."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._pending: asyncio.Future[LoadProgress | LoadOutcome] | None = None

    async def next(self, wait_s: float) -> LoadProgress | LoadOutcome | None:
        """The next step; None when `wait_s` seconds passed without one. Raises what the load raises."""
        if self._pending is None:
            self._pending = asyncio.ensure_future(anext(self._steps))
        done, _ = await asyncio.wait({self._pending}, timeout=wait_s)
        if not done:
            return None
        step, self._pending = self._pending.result(), None
        return step

    def leave(self) -> None:
        if self._pending is not None:
            self._pending.cancel()


async def load_frames(
    first: LoadProgress | LoadOutcome | None, steps: LoadSteps, outcome: Callable[[LoadOutcome], Any]
) -> AsyncIterator[bytes]:
    """One frame for each step; the last one is the outcome, or an error."""
    step = first
    while True:
        if isinstance(step, LoadOutcome):
            yield frame(_ENCODER.encode(outcome(step)))
            return
        yield comment("ping") if step is None else frame(_ENCODER.encode(step))
        try:
            step = await steps.next(PING_S)
        except Exception as error:
            shown = public(error)
            if shown is not error:
                _log.error("load failed", exc_info=error)
            yield frame(error_bytes(shown))
            return
