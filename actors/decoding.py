"""Decoding: from a prompt's logits to its last token, one step at a time. Used by the session that holds the lock."""

import numpy as np
import numpy.typing as npt

from neuron.actors.account import Account
from neuron.actors.device.jobs import Logits
from neuron.actors.errors import NanLogits
from neuron.actors.events import FinishReason, TokenLogprob
from neuron.actors.figures import Figures
from neuron.actors.resident import Resident
from neuron.actors.sampling.sampler import Sampled
from neuron.actors.steps import Steps
from neuron.actors.stream import EventStream
from neuron.actors.work import Work
from neuron.runtime.logs import Logger


class Decoding:
    """`generated`: tokens sampled so far, the one that ended the answer included."""

    def __init__(
        self,
        work: Work,
        resident: Resident,
        steps: Steps,
        stream: EventStream,
        account: Account,
        figures: Figures,
        log: Logger,
    ) -> None:
        self.generated = 0
        self._work = work
        self._resident = resident
        self._steps = steps
        self._stream = stream
        self._account = account
        self._figures = figures
        self._log = log

    async def run(self, reply: Logits) -> FinishReason:
        """Sample, post the next step, and only then turn the token into text."""
        work = self._work
        eos, parser = self._resident.text.tokenizer.eos_ids, work.parser
        while True:
            sampled = self._sample(reply)
            self.generated += 1
            finish: FinishReason | None = None
            if sampled.token_id in eos:
                finish = FinishReason.STOP
            elif self.generated >= work.max_new_tokens:
                finish = FinishReason.LENGTH
            else:
                self._steps.post(sampled.token_id, slot=1 - reply.slot)
            self._account.token(self._figures)
            work.sampler.accept(sampled.token_id)
            if sampled.token_id not in eos:
                text = work.detokenizer.push(sampled.token_id)
                for delta in parser.feed(sampled.token_id, text, self._logprob(sampled)):
                    await self._stream.put(delta)
            if parser.stopped:
                finish = FinishReason.STOP
            if finish is not None:
                return finish
            self._stream.check()
            reply = await self._steps.logits()
            self._stream.check()

    def _sample(self, reply: Logits) -> Sampled:
        row = self._steps.row(reply)
        try:
            return self._work.sampler.sample(row)
        except NanLogits:
            self.note_unhealthy(row[: self._resident.vocab_size])
            raise

    def note_unhealthy(self, row: npt.NDArray[np.float32]) -> None:
        """An empty row where the device process saw it and handed none over."""
        self._figures.unhealthy_logits += 1
        self._log.error(
            "logits unhealthy",
            position=self._steps.held,
            step=self.generated,
            nan=int(np.isnan(row).sum()),
            infinite=int(np.isinf(row).sum()),
            size=row.size,
        )

    def _logprob(self, sampled: Sampled) -> TokenLogprob | None:
        if sampled.logprob is None:
            return None
        entries = [self._entry(token, value) for token, value in sampled.top]
        chosen = self._entry(sampled.token_id, sampled.logprob)
        return TokenLogprob(chosen.token, chosen.logprob, chosen.bytes, tuple(entries))

    def _entry(self, token_id: int, value: float) -> TokenLogprob:
        raw = self._resident.text.tokenizer.token_bytes(token_id)
        return TokenLogprob(raw.decode("utf-8", "replace"), value, raw)
