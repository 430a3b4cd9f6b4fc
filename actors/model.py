"""ModelActor: one model's state machine, its queue and the sessions it owns. Driven by the registry."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import anyio
import anyio.abc
import msgspec

from neuron.actors.daemon import (
    LoadRequest,
    ModelInfo,
    ModelLoadFigures,
    ModelState,
    PoisonRecord,
    PrefixCacheFigures,
    QueueEntry,
)
from neuron.actors.errors import (
    ClientDisconnected,
    DeviceFault,
    ModelLoading,
    ModelNotFound,
    ModelPoisoned,
    ModelUnloading,
    NanLogits,
    QueueTimeout,
    RequestError,
    SlowClient,
    TpDivergence,
)
from neuron.actors.figures import Figures, RequestRecord
from neuron.actors.load_job import LoadJob
from neuron.actors.model_view import model_info
from neuron.actors.resident import Resident
from neuron.actors.session import Session
from neuron.actors.settings import LimitSettings
from neuron.actors.turnstile import Ticket, Turnstile
from neuron.actors.work import Work
from neuron.runtime.errors import NeuronError, ProtocolError, ShuttingDown, WorkerDied, WorkerUnresponsive
from neuron.runtime.logs import get_logger

log = get_logger(__name__)

#: Errors after which the device process is gone or cannot be trusted.
POISONING = (DeviceFault, WorkerDied, WorkerUnresponsive, ProtocolError, TpDivergence)
#: Errors that say nothing about the model, so that no poisoning decision is logged.
UNRELATED = (ClientDisconnected, SlowClient, QueueTimeout, ShuttingDown, ModelUnloading, ModelPoisoned)


class ModelActor:
    """All methods belong to the event loop. `info` and `figures_now` only read what is already known."""

    def __init__(
        self,
        model_id: str,
        source_id: str,
        aliases: tuple[str, ...],
        limits: LimitSettings,
        tasks: anyio.abc.TaskGroup,
        figures: Figures | None = None,
    ) -> None:
        self.model_id = model_id
        self.source_id = source_id
        self.aliases = aliases
        self.state = ModelState.LOADING
        self.job: LoadJob | None = None
        self.resident: Resident | None = None
        #: The last resident model: devices and capabilities are remembered while there is none.
        self._known: Resident | None = None
        #: What it was (or is being) loaded as, and where.
        self.spec: LoadRequest | None = None
        #: Of all its ranks, in order; empty while it has none.
        self.device_ids: tuple[str, ...] = ()
        #: Both, as they were before the load that runs.
        self._before: tuple[LoadRequest | None, tuple[str, ...]] = (None, ())
        self.poison: PoisonRecord | None = None
        self.reason: str | None = None
        #: Monotonic seconds of the last moment that a request held it, or that it became ready.
        self.last_used = time.monotonic()
        #: Monotonic seconds of the last load that failed.
        self.failed_at: float | None = None
        #: Bytes that a running load was promised.
        self.planned_bytes = 0
        self.figures = figures if figures is not None else Figures()
        self.turnstile = Turnstile(queue_limit=limits.queue_per_model, per_principal=limits.per_principal)
        #: Set when an unload is over and this entry has left the registry.
        self.gone = anyio.Event()
        self._limits = limits
        self._tasks = tasks
        self._sessions: dict[Ticket, Session] = {}
        self._idle = anyio.Event()

    # -- requests ------------------------------------------------------------------------------

    def usable(self) -> Resident:
        """The resident model, or the error that says why there is none."""
        if self.state is ModelState.READY and self.resident is not None:
            return self.resident
        if self.state in (ModelState.LOADING, ModelState.RECOVERING):
            raise ModelLoading("The model is being loaded; try again in a moment.", model_id=self.model_id)
        if self.state is ModelState.POISONED:
            raise self.poisoned_error()
        if self.state is ModelState.UNLOADING:
            raise ModelUnloading("The model is being unloaded.", model_id=self.model_id)
        raise ModelNotFound(self.model_id)

    def poisoned_error(self) -> ModelPoisoned:
        return ModelPoisoned(
            "The model's device failed; it answers again after the model is loaded anew.", model_id=self.model_id
        )

    def start_session(self, work: Work, resident: Resident, ticket: Ticket) -> Session:
        """Queue a request whose gates are passed. From here on the session is ours; the caller holds its stream."""
        session = Session(
            work, resident, self.turnstile, ticket, self.figures, self._limits, on_failure=self._note_failure
        )
        self._sessions[ticket] = session
        self.turnstile.enqueue(ticket)
        self._tasks.start_soon(self._run_session, session)
        return session

    async def _run_session(self, session: Session) -> None:
        try:
            await session.run()
        finally:
            self._sessions.pop(session.ticket, None)
            self.last_used = time.monotonic()
            if not self._sessions:
                self._idle.set()

    def end_sessions(self, error: Callable[[], NeuronError], *, waiting_only: bool = False) -> None:
        """Every session ends with its own `error()`: waiting ones at once, the running one within a step."""
        for session in list(self._sessions.values()):
            if waiting_only and session.ticket is self.turnstile.active:
                continue
            session.stream.end_early(error())

    def running(self) -> list[RequestRecord]:
        """The requests that wait or run, in the order they came."""
        return [session.record() for session in self._sessions.values()]

    @property
    def busy(self) -> bool:
        return bool(self._sessions)

    @property
    def idle(self) -> bool:
        """Ready, and no request runs, waits or is being rendered."""
        return self.state is ModelState.READY and not self._sessions and self.turnstile.depth == 0

    @property
    def claimed_bytes(self) -> int:
        """Bytes of device memory that it holds, or that its running load was promised."""
        if self.resident is not None and self.state in (ModelState.READY, ModelState.UNLOADING):
            return self.resident.bytes
        return self.planned_bytes if self.state in (ModelState.LOADING, ModelState.RECOVERING) else 0

    async def wait_idle(self, seconds: float) -> bool:
        """True once no session is left; False after `seconds`."""
        deadline = time.monotonic() + seconds
        while self._sessions:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self._idle = anyio.Event()
            with anyio.move_on_after(remaining):
                await self._idle.wait()
        return True

    # -- faults --------------------------------------------------------------------------------

    def _note_failure(self, session: Session, error: NeuronError) -> bool:
        """Called by a session that failed; returns whether the model is poisoned now."""
        if isinstance(error, POISONING) and self.resident is session.resident:
            self.mark_poisoned(_record_of(error, session))
            if isinstance(error, ProtocolError):
                self._distrust(session.resident, error)
        elif not isinstance(error, UNRELATED) and self.state is ModelState.READY:
            log.warning(
                "model NOT marked poisoned",
                model=self.model_id,
                req_id=session.work.req_id,
                error_code=error.code,
                phase=str(session.phase),
                logits=isinstance(error, NanLogits),
            )
        return self.state in (ModelState.POISONED, ModelState.RECOVERING)

    def _distrust(self, resident: Resident, error: ProtocolError) -> None:
        """A stamp that does not fit: the process at the other end is ended, whatever it believes."""
        resident.device.kill("protocol_error", lambda: ProtocolError(error.message))

    #: Set by the registry: what follows poisoning (automatic recovery).
    on_poisoned: Callable[["ModelActor"], None] | None = None

    def mark_poisoned(self, record: PoisonRecord) -> None:
        """Idempotent; a later record of the same end adds what the first did not know."""
        if self.poison is not None and self.state in (ModelState.POISONED, ModelState.RECOVERING):
            if self.poison.exit_status is None and record.exit_status is not None:
                self.poison = _merged(self.poison, record)
                self.reason = self.poison.reason
            return
        if self.state is not ModelState.READY:
            return
        self.state = ModelState.POISONED
        self.poison = self._with_active(record)
        self.reason = record.reason
        self.figures.poisonings += 1
        log.error(
            "model marked poisoned",
            model=self.model_id,
            device=self.where,
            rank=record.rank,
            reason=record.reason,
            code=record.code,
            phase=self.poison.phase,
            req_id=self.poison.req_id,
            exit_status=record.exit_status,
        )
        self.end_sessions(self.poisoned_error, waiting_only=True)
        if self.on_poisoned is not None:
            self.on_poisoned(self)

    def _with_active(self, record: PoisonRecord) -> PoisonRecord:
        """Names the request that ran when the device died, if one did."""
        active = self.turnstile.active
        if record.req_id is not None or active is None:
            return record
        return msgspec.structs.replace(record, req_id=active.req_id)

    # -- life ----------------------------------------------------------------------------------

    @property
    def holds_device(self) -> bool:
        """Whether its device process is (or may be) in use for it."""
        return self.state in (ModelState.LOADING, ModelState.READY, ModelState.RECOVERING)

    @property
    def where(self) -> str | None:
        """Its devices in one word, for the log."""
        return ",".join(self.device_ids) or None

    def begin_load(self, job: LoadJob, state: ModelState) -> None:
        self._before = self.spec, self.device_ids
        self.state = state
        self.job = job
        self.spec = job.spec
        if state is ModelState.LOADING:
            self.reason = None

    def load_failed(self, error: NeuronError) -> None:
        """A load that fails leaves `failed`. A poisoned model stays poisoned as it was when its recovery fails, and
        when the load asked for something that cannot be: bad input loses nothing."""
        if self.state is ModelState.UNLOADING:
            return
        if self.poison is not None and (self.state is ModelState.RECOVERING or isinstance(error, RequestError)):
            self.state, self.reason = ModelState.POISONED, self.poison.reason
            self.spec, self.device_ids = self._before
            return
        self.state = ModelState.FAILED
        self.poison = None
        self.failed_at = time.monotonic()
        self.device_ids = ()
        self.reason = f"{error.code}: {error.message}"

    def become_ready(self, resident: Resident) -> None:
        self.resident = self._known = resident
        self.state = ModelState.READY
        self.last_used = time.monotonic()
        self.poison = None
        self.reason = None

    def release(self) -> None:
        """Give the shared memory of the resident model back; the device process forgets it elsewhere."""
        if self.resident is not None:
            self.resident.slots.close()
            self.resident = None

    # -- views ---------------------------------------------------------------------------------

    def info(self) -> ModelInfo:
        return model_info(
            model_id=self.model_id,
            source_id=self.source_id,
            aliases=self.aliases,
            state=self.state,
            known=self._known,
            device_ids=self.device_ids,
            poison=self.poison,
            reason=self.reason,
            limits=self._limits,
        )

    def figures_now(self) -> ModelLoadFigures:
        turnstile, now = self.turnstile, time.monotonic()
        active = turnstile.active
        return ModelLoadFigures(
            id=self.model_id,
            state=self.state,
            in_flight=1 if active is not None else 0,
            queue_depth=turnstile.depth,
            max_in_flight=1,
            max_queue_depth=self._limits.queue_per_model,
            rejected_queue_full=turnstile.rejected_queue_full,
            rejected_timeout=turnstile.rejected_timeout,
            rejected_per_principal=turnstile.rejected_per_principal,
            tok_s_prefill=round(self.figures.tok_s_prefill, 2),
            tok_s_decode=round(self.figures.tok_s_decode, 2),
            active_request_id=active.req_id if active is not None else None,
            active_for_s=round(now - (active.started_at or now), 3) if active is not None else None,
            queue=tuple(
                QueueEntry(ticket.req_id, place, round(ticket.waited_s, 3))
                for place, ticket in enumerate(turnstile.waiting, 1)
            ),
            prefix_cache=self._prefix_figures(),
        )

    def _prefix_figures(self) -> PrefixCacheFigures | None:
        prefix = self.resident.prefix if self.resident is not None else None
        return prefix.figures() if prefix is not None else None


def _record_of(error: NeuronError, session: Session) -> PoisonRecord:
    """The session's own knowledge of the end; the device actor's record adds code and exit status."""
    return PoisonRecord(
        reason=error.code,
        code=0,
        phase=str(session.phase),
        req_id=session.work.req_id,
        at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    )


def _merged(first: PoisonRecord, later: PoisonRecord) -> PoisonRecord:
    """Reason, code and exit status as the device actor saw them; request and phase as the session did."""
    return msgspec.structs.replace(
        first,
        reason=later.reason,
        code=later.code,
        phase=first.phase or later.phase,
        exit_status=later.exit_status,
        rank=later.rank,
    )
