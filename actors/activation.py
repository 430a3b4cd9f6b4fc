"""Activation: loads the models of the configuration at start-up, in order, while the listener already answers."""

from collections.abc import Awaitable, Callable

import anyio
import anyio.abc

from neuron.actors.daemon import Activation, LoadRequest
from neuron.actors.errors import RepoFetchFailed
from neuron.actors.settings import ModelSettings
from neuron.runtime.errors import InternalError, NeuronError, ShuttingDown
from neuron.runtime.logs import get_logger

log = get_logger(__name__)

#: Waits between tries of a load that failed because its source could not be reached: doubling, then no more.
FIRST_RETRY_S = 10.0
LONGEST_RETRY_S = 300.0
RETRIES = 6


class Activator:
    """Every id is in exactly one of the four lists. Once ready it stays ready."""

    def __init__(
        self,
        models: tuple[ModelSettings, ...],
        load: Callable[[LoadRequest], Awaitable[object]],
        tasks: anyio.abc.TaskGroup,
        *,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._load = load
        self._tasks = tasks
        self._sleep = sleep
        self._pending = [model.id for model in models]
        self._in_progress: str | None = None
        self._completed: list[str] = []
        self._failed: dict[str, str] = {}
        self._ready = not models

    def state(self) -> Activation:
        return Activation(
            state="ready" if self._ready else "pre_warming",
            pending=tuple(self._pending),
            in_progress=self._in_progress,
            completed=tuple(self._completed),
            failed=tuple(self._failed.items()),
        )

    async def run(self) -> None:
        while self._pending:
            model_id = self._in_progress = self._pending.pop(0)
            error = await self._try(model_id)
            self._in_progress = None
            if isinstance(error, ShuttingDown):
                return
            if error is None:
                self._completed.append(model_id)
            else:
                self._failed[model_id] = error.message
                if isinstance(error, RepoFetchFailed):
                    self._tasks.start_soon(self._retry, model_id)
        self._ready = True
        log.info("activation complete", completed=self._completed, failed=list(self._failed))

    async def _try(self, model_id: str) -> NeuronError | None:
        try:
            await self._load(LoadRequest(model_id=model_id))
        except ShuttingDown as error:
            return error
        except NeuronError as error:
            log.error("start-up model failed", model=model_id, reason=error.code, detail=error.message)
            return error
        except Exception as error:
            log.error("start-up model failed", model=model_id, cause=f"{type(error).__name__}: {error}"[:500])
            return InternalError("The model could not be loaded.")
        return None

    async def _retry(self, model_id: str) -> None:
        """A hub that cannot be reached at boot is tried again in the background; the daemon serves meanwhile."""
        delay = FIRST_RETRY_S
        for attempt in range(1, RETRIES + 1):
            await self._sleep(delay)
            log.info("start-up model retried", model=model_id, attempt=attempt)
            error = await self._try(model_id)
            if error is None:
                self._failed.pop(model_id, None)
                self._completed.append(model_id)
                return
            self._failed[model_id] = error.message
            if not isinstance(error, RepoFetchFailed):
                return
            delay = min(delay * 2, LONGEST_RETRY_S)
