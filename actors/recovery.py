"""Recovery: with `[recovery] mode = "auto"` a poisoned model is loaded anew by itself, within a budget of restarts."""

from collections.abc import Callable

from neuron.actors.daemon import ModelState
from neuron.actors.model import ModelActor
from neuron.actors.settings import RecoveryMode, RecoverySettings
from neuron.runtime.actor import Actor
from neuron.runtime.errors import NeuronError
from neuron.runtime.logs import get_logger
from neuron.runtime.restarts import RestartBudget

log = get_logger(__name__)


class Recovery(Actor[ModelActor]):
    """Takes poisoned models as messages. Single flight per model: one that left the state meanwhile is passed over.

    `reload(entry, state)` begins a load of it as it was, and does not wait for its end.
    """

    def __init__(self, settings: RecoverySettings, reload: Callable[[ModelActor, ModelState], None]) -> None:
        super().__init__("recovery")
        self._settings = settings
        self._reload = reload
        #: By source id; kept over restarts of this actor.
        self._budgets: dict[str, RestartBudget] = {}

    def on_poisoned(self, entry: ModelActor) -> None:
        """Queue a model; called where it is marked, so it never raises."""
        if self._settings.mode is not RecoveryMode.AUTO:
            return
        try:
            self.tell(entry)
        except NeuronError as error:
            log.error("recovery given up", model=entry.model_id, reason=error.code)

    async def on_message(self, message: ModelActor) -> None:
        entry = message
        if entry.state is not ModelState.POISONED:
            return
        if not self._budget(entry.source_id).spend():
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

    def _budget(self, source_id: str) -> RestartBudget:
        settings = self._settings
        fresh = RestartBudget(settings.restart_budget, settings.restart_window_seconds)
        return self._budgets.setdefault(source_id, fresh)
