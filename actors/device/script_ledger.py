"""How often each fault of a script has fired, kept in the daemon so that `times` outlives the processes they end."""

from dataclasses import dataclass, field

import msgspec

from neuron.actors.device.jobs import Job, LoadScripted, ScriptFaultFired


@dataclass(slots=True)
class ScriptLedger:
    """Counts by (digest of the script, turn). A changed file starts anew."""

    _fired: dict[str, dict[int, int]] = field(default_factory=dict)

    def note(self, event: ScriptFaultFired) -> None:
        turns = self._fired.setdefault(event.digest, {})
        turns[event.turn] = turns.get(event.turn, 0) + 1

    def prepare(self, job: Job) -> Job:
        """A load of a script learns what has fired before."""
        if not isinstance(job, LoadScripted):
            return job
        fired = tuple((digest, turn, count) for digest, turns in self._fired.items() for turn, count in turns.items())
        return msgspec.structs.replace(job, fired=fired)
