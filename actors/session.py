"""Session: one request from its place in the queue to its terminal event. A task that the model actor owns.

It owns the lock, the jobs and the KV state while it runs; the HTTP handler only drains its EventStream.
"""

import time
from collections.abc import Callable
from enum import StrEnum

import anyio
import numpy as np

from neuron.actors.account import Account
from neuron.actors.canary import still_sound
from neuron.actors.causes import cause_chain
from neuron.actors.decoding import Decoding
from neuron.actors.device.replies import DeviceProcessError
from neuron.actors.errors import DeviceFault, NanLogits
from neuron.actors.events import Failed, Finish, FinishReason, Queued, Start, Timings, Usage
from neuron.actors.figures import Figures, RequestRecord
from neuron.actors.prefix.prefill import Prefill
from neuron.actors.resident import Resident
from neuron.actors.settings import LimitSettings
from neuron.actors.steps import Steps
from neuron.actors.stream import EventStream
from neuron.actors.turnstile import Ticket, TicketState, Turnstile
from neuron.actors.work import Work
from neuron.runtime.errors import InternalError, NeuronError, ShuttingDown
from neuron.runtime.logs import get_logger

log = get_logger(__name__)

#: Seconds between warnings while a request waits for the lock, and between looks at its position.
WAIT_REPORT_S = 2.0
POSITION_S = 1.0


class Phase(StrEnum):
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISH = "finish"


class Session:
    """Runs one Work on one Resident. `run` never raises (but for the cancellation of its own task)."""

    def __init__(
        self,
        work: Work,
        resident: Resident,
        turnstile: Turnstile,
        ticket: Ticket,
        figures: Figures,
        limits: LimitSettings,
        on_failure: Callable[["Session", NeuronError], bool],
    ) -> None:
        self.work = work
        self.stream = EventStream(limits.write_idle_seconds)
        self.ticket = ticket
        self.phase = Phase.QUEUE
        self.resident = resident
        self._steps = Steps(resident)
        self._turnstile = turnstile
        self._figures = figures
        self._limits = limits
        self._on_failure = on_failure
        self.account = Account(work.req_id, resident.model_id, work.submitted_at)
        #: The device reported a fault and lives on.
        self._suspect = False
        self._log = log.bind(req_id=work.req_id, model=resident.model_id, device=resident.where)
        self._prefill = Prefill(resident, self._steps, self._log)
        self._decoding = Decoding(work, resident, self._steps, self.stream, self.account, figures, self._log)

    # -- the whole life ------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            await self._run()
        except NeuronError as error:
            self._fail(error)
        except anyio.get_cancelled_exc_class():
            self._fail(ShuttingDown("The daemon stops."))
            raise
        except Exception as error:
            failure = InternalError("The request failed inside the daemon.")
            failure.__cause__ = error
            self._fail(failure)
        finally:
            try:
                await self._drain()
                await self._verify()
            finally:
                self._turnstile.leave(self.ticket)
                self._log.debug("lock released", queue_depth=self._turnstile.depth)

    async def _run(self) -> None:
        self.stream.on_wanted_end = self.ticket.poke
        self.stream.put_now(Start(len(self.work.prompt)))
        device = self.resident.device.info()
        self._log.info(
            "starting",
            prompt_tokens=len(self.work.prompt),
            max_tokens=self.work.max_new_tokens,
            queue_depth=self._turnstile.depth,
            vram_free_mb=device.vram_free_mb,
            vram_total_mb=device.vram_total_mb,
        )
        await self._wait_for_turn()
        self.account.started(self._figures)
        self.phase = Phase.PREFILL
        reply = await self._prefill.run(
            self.work.prompt,
            self._limits.prefill_chunk_tokens,
            before_each=self._before_chunk,
            images=self.work.images,
        )
        self.account.first_logits = time.monotonic()
        self._note_prefill()
        self.phase = Phase.DECODE
        reason = await self._decoding.run(reply)
        self.phase = Phase.FINISH
        await self._finish(reason)

    async def _wait_for_turn(self) -> None:
        reported = 0
        warn_at = WAIT_REPORT_S
        while self.ticket.state is not TicketState.RUNNING:
            self.stream.check()
            waited = self.ticket.waited_s
            if waited >= self._limits.queue_seconds:
                raise self._turnstile.timed_out(self.ticket)
            position = self._turnstile.position(self.ticket)
            if waited >= warn_at:
                self._log.warning("still waiting for model lock", waited_s=round(waited, 1), position=position)
                warn_at += WAIT_REPORT_S
                reported = 0
            if position != reported:
                self.stream.put_now(Queued(position, waited))
                reported = position
            await self.ticket.wait(min(POSITION_S, warn_at - waited, self._limits.queue_seconds - waited))
        self.stream.on_wanted_end = None
        self._log.debug("lock taken", waited_ms=round(self.ticket.waited_s * 1e3, 1))
        self.stream.check()

    # -- device work ---------------------------------------------------------------------------

    def _before_chunk(self) -> None:
        self.stream.check()
        self._log.debug("prefill chunk", position=self._steps.held)

    # -- the end -------------------------------------------------------------------------------

    async def _finish(self, reason: FinishReason) -> None:
        parser = self.work.parser
        deltas = []
        if not parser.stopped:
            tail = self.work.detokenizer.flush()
            if tail:
                deltas += parser.feed(-1, tail)
        truncated = reason is FinishReason.LENGTH and not parser.stopped
        deltas += parser.finish(truncated=truncated)
        for delta in deltas:
            await self.stream.put(delta)
        if not truncated:
            reason = FinishReason.TOOL_CALLS if parser.tool_calls else FinishReason.STOP
        timings = self._timings()
        usage = self._usage()
        self.stream.check()
        self.stream.put_now(Finish(reason, usage, timings, parser.stop_sequence))
        self._figures.decode(self._decoding.generated - 1, timings.decode_ms / 1e3)
        self._count(str(reason))
        line = self.account.line(usage, timings)
        self._log.info("done", finish_reason=str(reason), poisoned=False, **line)

    def _fail(self, error: NeuronError) -> None:
        poisoned = self._on_failure(self, error)
        by_device = isinstance(error.__cause__, DeviceProcessError)
        if isinstance(error, NanLogits) and by_device:
            self._decoding.note_unhealthy(np.empty(0, np.float32))
        survived = by_device or isinstance(error, NanLogits)
        self._suspect = survived and not poisoned
        if self.stream.ended:
            return
        self._figures.failed += 1
        self._count(error.code)
        usage = self._usage()
        self.stream.put_now(Failed(error, usage))
        self.stream.ended = True
        line = self.account.line(usage, self._timings())
        write = self._log.warning if error.status >= 500 else self._log.info
        write(
            "failed",
            error_code=error.code,
            phase=str(self.phase),
            elapsed_ms=line["total_ms"],
            poisoned=poisoned,
            cause=cause_chain(error),
            **line,
        )

    async def _drain(self) -> None:
        """A job may still be running: the lock is kept until its reply is here, so nobody else reads it."""
        try:
            await self._steps.drain()
        except NeuronError as error:
            self._on_failure(self, error)
        except Exception as error:
            self._log.error("the last job of a request failed", cause=cause_chain(error))
        if self._steps.broken and self.resident.prefix is not None:
            self.resident.prefix.lost()

    async def _verify(self) -> None:
        """After a fault that the device survived, and before the lock is handed on: does it still compute right?"""
        if not self._suspect:
            return
        device = self.resident.device
        if self.resident.prefix is not None:
            self.resident.prefix.lost()  # The canary sings in the same sequence.
        try:
            if await still_sound(device, self.resident.canary):
                return
            self._log.error("canary mismatch: the model says something else than when it was loaded")
            device.kill("canary_mismatch", lambda: DeviceFault("The device no longer computes what it did."))
        except NeuronError as error:
            self._on_failure(self, error)
        except Exception as error:
            self._log.error("the check after a fault failed", cause=cause_chain(error))
            device.kill("unverified", lambda: DeviceFault("The device could not be checked after a fault."))

    # -- figures -------------------------------------------------------------------------------

    def _note_prefill(self) -> None:
        seconds = self.account.first_logits - self.account.running
        reused = self._prefill.reused
        tokens = len(self.work.prompt) - reused
        self._figures.prefill(tokens, seconds)
        self._log.info(
            "prefill complete",
            prompt_tokens=len(self.work.prompt),
            cached_tokens=reused,
            prefill_ms=round(seconds * 1e3, 1),
            tok_s=round(tokens / seconds, 1) if seconds > 0 else 0.0,
        )

    def _count(self, outcome: str) -> None:
        usage, figures = self._usage(), self._figures
        figures.requests += 1
        figures.prompt_tokens += usage.prompt_tokens
        figures.cached_tokens += usage.cached_tokens
        figures.completion_tokens += usage.completion_tokens
        figures.reasoning_tokens += usage.reasoning_tokens
        figures.ended(self.record(outcome))

    def record(self, outcome: str | None = None) -> RequestRecord:
        """What the status page shows of it; without an outcome while it waits or runs."""
        return self.account.record(self._usage(), self._timings(), phase=str(self.phase), outcome=outcome)

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self.work.prompt),
            completion_tokens=self._decoding.generated,
            reasoning_tokens=min(self.work.parser.reasoning_tokens, self._decoding.generated),
            cached_tokens=self._prefill.reused,
        )

    def _timings(self) -> Timings:
        return self.account.timings(
            prompt=len(self.work.prompt), generated=self._decoding.generated, cached=self._prefill.reused
        )
