"""A scripted device process whose rows look like a language model's. Started by ops.bench.overhead_daemon alone."""

import os
import time

import numpy as np
import numpy.typing as npt

from neuron.actors.device.worker import __main__ as worker
from neuron.actors.device.worker import scripted

#: Different rows, so that no sampler profits from having seen one.
_ROWS = 8
#: Standard deviation of logits, and how far their best few stand out: about what models of this size write.
_SPREAD, _PEAKS = 2.5, np.linspace(18.0, 12.0, 24, dtype=np.float32)
#: Never drawn: an answer ends at its token limit.
_NEVER = np.float32(-40.0)


class PlausibleModel(scripted.ScriptedModel):
    """Keeps a script's time, but writes noise with a few likely tokens instead of its one."""

    _rows: npt.NDArray[np.float32] | None = None

    def _answer(self, state: scripted._Sequence, logits: npt.NDArray[np.float32]) -> None:
        if self._rows is None:
            self._rows = self._made()
        turn = self._turn(state)
        if turn is not None and turn.delay_ms:
            time.sleep(turn.delay_ms / 1000)
        np.copyto(logits, self._rows[state.step % _ROWS])

    def _made(self) -> npt.NDArray[np.float32]:
        chance = np.random.default_rng(0)
        rows = chance.normal(0.0, _SPREAD, (_ROWS, self.vocab_size)).astype(np.float32)
        for row in rows:
            row[chance.choice(self.vocab_size, _PEAKS.size, replace=False)] = _PEAKS
        rows[:, self._vocabulary.eos_id] = _NEVER
        return rows


if __name__ == "__main__":
    scripted.ScriptedModel = PlausibleModel  # type: ignore[misc]
    os._exit(worker.main())
