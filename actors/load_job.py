"""LoadJob: one load of one model, however many callers wait for it. Owned by the model's entry, never by a caller."""

import anyio

from neuron.actors.daemon import LoadProgress, LoadRequest
from neuron.runtime.errors import NeuronError


class LoadJob:
    """Single flight: whoever asks for a load that runs gets its outcome."""

    def __init__(self, spec: LoadRequest) -> None:
        self.spec = spec
        self.progress = LoadProgress("queued", 0.0)
        self.error: NeuronError | None = None
        self.done = False
        #: Cancelling it ends the load (unload, shutdown).
        self.scope = anyio.CancelScope()
        self._changed = anyio.Event()
        self._finished = anyio.Event()

    def report(self, stage: str, fraction: float) -> None:
        self.progress = LoadProgress(stage, min(max(fraction, 0.0), 1.0))
        self._changed.set()
        self._changed = anyio.Event()

    def finish(self, error: NeuronError | None) -> None:
        """Once: None for success."""
        self.error = error
        self.done = True
        self._changed.set()
        self._finished.set()

    async def changed(self) -> None:
        """Until the next report or the end."""
        if not self.done:
            await self._changed.wait()

    async def wait(self, seconds: float) -> bool:
        """True once the load is over; raises its error. False when `seconds` passed first."""
        with anyio.move_on_after(seconds):
            await self._finished.wait()
        if self.error is not None:
            raise self.error.with_traceback(None)
        return self.done
