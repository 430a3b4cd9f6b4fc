"""Registry: the daemon as the front doors see it. Implements `actors.daemon.Daemon` over model and device actors."""

import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from neuron.actors import discovery
from neuron.actors.activation import Activator
from neuron.actors.admission import prompt_cap
from neuron.actors.catalogue import Catalogue
from neuron.actors.causes import cause_chain
from neuron.actors.daemon import (
    Activation,
    DeviceInfo,
    InferenceStream,
    LoadOutcome,
    LoadProgress,
    LoadRequest,
    ModelInfo,
    ModelLoadFigures,
    ModelState,
    OfferedModel,
    PoisonRecord,
)
from neuron.actors.device.actor import DeviceActor
from neuron.actors.device.devices import cuda_device_count
from neuron.actors.device.spare import Spare
from neuron.actors.device_set import DeviceSet
from neuron.actors.errors import ClientDisconnected, ModelLoading
from neuron.actors.figures import Figures, RequestRecord
from neuron.actors.gates import Gates, TextWork
from neuron.actors.loading import Loader
from neuron.actors.loads import LoadDesk
from neuron.actors.model import ModelActor
from neuron.actors.recovery import Recovery
from neuron.actors.request import InferenceRequest
from neuron.actors.sampling.sampler import warm_up
from neuron.actors.settings import Settings
from neuron.actors.shutdown import shut_down
from neuron.actors.text_work import PooledTextWork
from neuron.runtime.errors import InternalError, NeuronError, RestartLimit, ShuttingDown
from neuron.runtime.logs import get_logger
from neuron.runtime.part import Part
from neuron.runtime.supervisor import Restart, Supervisor
from neuron.runtime.workers import Workers

log = get_logger(__name__)

#: A load that failed is not tried again by requests for so many seconds.
LOAD_AGAIN_S = 30.0


class Registry:
    """Everything here belongs to one event loop. Views return at once from what is already known."""

    def __init__(self, settings: Settings, *, text_work: TextWork | None = None, spare: Spare | None = None) -> None:
        """`spare`: a device process that the models loaded at start will use."""
        self.settings = settings
        self._spare = spare
        self._catalogue = Catalogue(settings.models)
        self._text_work = text_work if text_work is not None else PooledTextWork()
        self._loader = Loader(settings, self._text_work.expect)
        self._gates = Gates(settings.limits, self._text_work)
        self._offered_capabilities: dict[str, tuple[str, ...]] = {}
        #: A disk that does not answer holds these threads, and none that requests and loads need.
        self._lookups = Workers(2, "lookups")
        self._draining = False
        self._parts = Supervisor("daemon")
        self._facts = discovery.gather(0)

    # -- life ----------------------------------------------------------------------------------

    async def start(self, task_group: anyio.abc.TaskGroup) -> None:
        """Make the actors and begin loading the configured models; returns before any of them is loaded.

        `task_group` lives as long as the daemon: sessions, loads and device watchers are its tasks.
        """
        self._tasks = task_group
        self._devices = DeviceSet(self._make_device, self._on_device_death)
        self._recovery = Recovery(self.settings.recovery, self._reload)
        self._desk = LoadDesk(
            self.settings, self._catalogue, self._devices, self._loader, task_group, self._recovery.on_poisoned
        )
        at_start = tuple(model for model in self.settings.models if model.at_start)
        self._activator = Activator(at_start, self._desk.load_to_end, task_group)
        for name, work in (
            ("host facts", self._gather_facts),
            ("sampler warm-up", partial(anyio.to_thread.run_sync, warm_up)),
            ("template helpers", self._text_work.start),
            ("activation", self._activate),
        ):
            self._parts.add(Part(name, work), Restart.NEVER)
        if self.settings.residency.load_on_request:
            self._parts.add(Part("offered models", self._look_at_offered), Restart.NEVER)
        self._parts.add(Part("idle models", self._desk.residency.watch))
        self._parts.add(self._recovery)
        task_group.start_soon(self._supervise)

    async def _supervise(self) -> None:
        """What fails is logged and, where it is no work of one time, begun again; requests go on without any of it."""
        try:
            await self._parts.run_alone()
        except RestartLimit as error:
            log.error("background work given up", cause=cause_chain(error))

    async def _activate(self) -> None:
        try:
            await self._activator.run()
        finally:
            if self._spare is not None:
                self._spare.discard()

    async def _gather_facts(self) -> None:
        """A slow driver must not keep the listener waiting."""
        nodes = cuda_device_count()
        if nodes:
            self._facts = await anyio.to_thread.run_sync(discovery.gather, nodes)

    async def shutdown(self) -> None:
        """Drain and unload, within shutdown_seconds plus the bounds of an unload. Every stream has ended after it."""
        if self._draining:
            return
        self._draining = True
        await shut_down(self._catalogue, self._desk, self._devices, self.settings.server.shutdown_seconds)
        self._text_work.close()
        self._lookups.close()

    def _make_device(self, device_id: str) -> DeviceActor:
        spare = self._spare if self._spare is not None and self._spare.device_id == device_id else None
        return DeviceActor(device_id, self.settings.limits, self._tasks, spare=spare)

    def _on_device_death(self, device_ids: tuple[str, ...], record: PoisonRecord) -> None:
        """Only models that lived on just these devices are poisoned; a load in progress has its own error.

        A group tells of its own end: what its ranks say one by one would hide the cause.
        """
        for entry in self._catalogue:
            if entry.device_ids == device_ids:
                entry.mark_poisoned(record)

    def _reload(self, entry: ModelActor, state: ModelState) -> None:
        self._desk.reload(entry, state)

    # -- views ---------------------------------------------------------------------------------

    def models(self, *, everything: bool = False) -> list[ModelInfo]:
        return [entry.info() for entry in self._catalogue if everything or entry.state is not ModelState.FAILED]

    def offered(self) -> list[OfferedModel]:
        if not self.settings.residency.load_on_request:
            return []
        known = self._offered_capabilities
        away = [model for model in self.settings.models if self._is_away(self._catalogue.find(model.id))]
        return [
            OfferedModel(model.id.rpartition(":")[2], known.get(model.id, ("text",)), model.max_context or 0)
            for model in away
        ]

    def _is_away(self, entry: ModelActor | None) -> bool:
        return entry is None or entry.state is ModelState.FAILED

    async def _look_at_offered(self) -> None:
        """What local files say of the models that requests may load, once."""
        for model in self.settings.models:
            with contextlib.suppress(NeuronError):
                self._offered_capabilities[model.id] = await self.capabilities(model.id)

    def model(self, model_id: str) -> ModelInfo:
        return self._catalogue.require(model_id).info()

    async def capabilities(self, model_id: str) -> tuple[str, ...]:
        entry = self._catalogue.find(model_id)
        if entry is not None and entry.info().capabilities:
            return entry.info().capabilities
        return await self._lookups.run(self._loader.local_capabilities, model_id)

    def load_figures(self) -> list[ModelLoadFigures]:
        return [entry.figures_now() for entry in self._catalogue if entry.state is not ModelState.FAILED]

    def figures(self) -> dict[str, Figures]:
        found: dict[str, Figures] = {}
        for source_id, figures in self._desk.figures.items():
            name = self._desk.public_ids[source_id]
            # Two sources may have had the same bare id, one after the other.
            found[source_id if name in found else name] = figures
        return found

    def request_records(self) -> list[RequestRecord]:
        running = [record for entry in self._catalogue for record in entry.running()]
        recent = [record for figures in self._desk.figures.values() for record in figures.recent]
        return running + sorted(recent, key=lambda record: record.ended_at or "", reverse=True)

    def devices(self) -> list[DeviceInfo]:
        return self._devices.infos()

    def activation(self) -> Activation:
        return self._activator.state()

    def draining(self) -> bool:
        return self._draining or self._desk.closed

    def discovery(self) -> dict[str, Any]:
        return discovery.document(self._facts, self.devices(), prompt_cap(self.settings.limits), self._cuda_version())

    def _cuda_version(self) -> str | None:
        for device in self._devices.all():
            ready = device.facts()
            if ready is not None and ready.cuda_version is not None:
                return ready.cuda_version
        return None

    # -- control -------------------------------------------------------------------------------

    async def load(self, request: LoadRequest) -> LoadOutcome:
        return await self._desk.load(request)

    async def load_progress(self, request: LoadRequest) -> AsyncIterator[LoadProgress | LoadOutcome]:
        job = await self._desk.start_or_join(request)
        if job is None:
            yield LoadOutcome("loaded", already=True)
            return
        while not job.done:
            yield job.progress
            await job.changed()
        await job.wait(0.0)
        yield LoadOutcome("loaded")

    async def unload(self, model_id: str) -> None:
        await self._desk.unload(model_id)

    async def preflight(self, request: LoadRequest) -> dict[str, Any]:
        report = await self._desk.preflight(request)
        built: dict[str, Any] = msgspec.to_builtins(report)
        return built

    # -- requests ------------------------------------------------------------------------------

    async def submit(self, request: InferenceRequest) -> InferenceStream:
        """Pass the gates and queue the request. A refusal is raised here, with its own terminal log line."""
        started = time.monotonic()
        try:
            return await self._submit(request)
        except NeuronError as error:
            self._log_refusal(request, error, started)
            raise
        except anyio.get_cancelled_exc_class():
            self._log_refusal(request, ClientDisconnected("The client left before the request was queued."), started)
            raise
        except Exception as error:
            failure = InternalError("The request failed inside the daemon.")
            failure.__cause__ = error
            self._log_refusal(request, failure, started)
            raise failure from error

    async def _submit(self, request: InferenceRequest) -> InferenceStream:
        self._refuse_when_draining()
        entry = await self._wanted(request.model)
        ticket = entry.turnstile.reserve(request.req_id, request.principal, total_full=self._total_full())
        try:
            await self._until_loaded(entry)
            resident = entry.usable()
            work = await self._gates.prepare(resident, request)
            self._refuse_when_draining()
            if entry.usable() is not resident:
                raise ModelLoading("The model was loaded anew meanwhile; try again.", model_id=entry.model_id)
            return entry.start_session(work, resident, ticket).stream
        except BaseException:
            entry.turnstile.leave(ticket)
            raise

    async def _wanted(self, name: str) -> ModelActor:
        """The model meant; with load_on_request a configured one that is not resident begins to load."""
        entry = self._catalogue.find(name)
        away = entry is None or entry.state in (ModelState.FAILED, ModelState.UNLOADING)
        if self.settings.residency.load_on_request and away:
            own = self._catalogue.configured_as(entry.source_id if entry is not None else name)
            failed_at = entry.failed_at if entry is not None else None
            if own is not None and (failed_at is None or time.monotonic() - failed_at >= LOAD_AGAIN_S):
                await self._desk.start_or_join(LoadRequest(model_id=own.id))
        return self._catalogue.require(name)

    async def _until_loaded(self, entry: ModelActor) -> None:
        """A request that comes while its model loads waits for it, as long as one waits in a queue."""
        job = entry.job
        if entry.state is not ModelState.LOADING or job is None:
            return
        if not await job.wait(self.settings.limits.queue_seconds):
            raise ModelLoading("The model is still being loaded; try again later.", model_id=entry.model_id)

    def _refuse_when_draining(self) -> None:
        if self.draining():
            raise ShuttingDown("The daemon is shutting down.")

    def _total_full(self) -> bool:
        return sum(entry.turnstile.depth for entry in self._catalogue) >= self.settings.limits.queue_total

    def _log_refusal(self, request: InferenceRequest, error: NeuronError, started: float) -> None:
        entry = self._catalogue.find(request.model)
        if entry is not None:
            entry.figures.refused(error.code)
        elapsed = round((time.monotonic() - started) * 1e3, 1)
        write = log.warning if error.status >= 500 else log.info
        write(
            "failed",
            req_id=request.req_id,
            model=request.model[:200],
            error_code=error.code,
            phase="admission",
            total_ms=elapsed,
            elapsed_ms=elapsed,
            poisoned=error.code == "model_poisoned",
            kind=error.extra.get("kind"),
            cause=cause_chain(error),
        )
