"""Recovery: with `[recovery] mode = "auto"` a poisoned model is loaded anew by itself, within a budget of restarts."""

import time
from collections import deque
from collections.abc import Callable

from neuron.actors.daemon import ModelState
from neuron.actors.model import ModelActor
from neuron.actors.settings import RecoveryMode, RecoverySettings
from neuron.runtime.logs import get_logger

log = get_logger(__name__)


class Recovery:
    """Single flight per model: a poisoned model leaves the state at once, so it is never recovered twice."""

    def __init__(self, settings: RecoverySettings, reload: Callable[[ModelActor, ModelState], None]) -> None:
        self._settings = settings
        self._reload = reload
        self._restarts: dict[str, deque[float]] = {}

    def on_poisoned(self, entry: ModelActor) -> None:
        if self._settings.mode is not RecoveryMode.AUTO:
            return
        if not self._spend(entry.source_id):
            log.error(
                "recovery given up",
                model=entry.model_id,
                reason="restart_limit",
                restarts=self._settings.restart_budget,
                window_s=self._settings.restart_window_seconds,
            )
            return
        log.warning("recovering model", model=entry.model_id, device=entry.where)
        self._reload(entry, ModelState.RECOVERING)

    def _spend(self, source_id: str) -> bool:
        now = time.monotonic()
        restarts = self._restarts.setdefault(source_id, deque())
        while restarts and now - restarts[0] > self._settings.restart_window_seconds:
            restarts.popleft()
        if len(restarts) >= self._settings.restart_budget:
            return False
        restarts.append(now)
        return True
