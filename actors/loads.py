"""LoadDesk: starts, joins and refuses loads, unloads models, and brings poisoned ones back. Owned by the registry.

Every load and unload is a task of the daemon: a caller that leaves changes nothing.
"""

import math
import time
from collections import Counter
from collections.abc import Callable

import anyio
import anyio.abc

from neuron.actors.admission import free_bytes
from neuron.actors.catalogue import Catalogue
from neuron.actors.daemon import LoadOutcome, LoadRequest, ModelState
from neuron.actors.device.actor import REAP_SECONDS
from neuron.actors.device.jobs import Drop
from neuron.actors.device_set import DeviceSet
from neuron.actors.errors import AlreadyLoaded, ModelUnloading
from neuron.actors.figures import Figures
from neuron.actors.load_job import LoadJob
from neuron.actors.loading import Loader, LoadPlan, abandon
from neuron.actors.model import POISONING, ModelActor
from neuron.actors.residency import Residency
from neuron.actors.settings import ModelSettings, Settings
from neuron.actors.sources.ids import parse_model_id
from neuron.actors.sources.preflight import PreflightReport
from neuron.runtime.errors import InternalError, NeuronError, ShuttingDown
from neuron.runtime.logs import get_logger

log = get_logger(__name__)

#: A load that takes longer is answered with status "loading" and goes on.
LOAD_WAIT_S = 240.0
#: The whole of an unload: ending the running request, dropping the weights.
UNLOAD_S = 20.0
KEPT_FAILURES = 32


class LoadDesk:
    def __init__(
        self,
        settings: Settings,
        catalogue: Catalogue,
        devices: DeviceSet,
        loader: Loader,
        tasks: anyio.abc.TaskGroup,
        on_poisoned: Callable[[ModelActor], None],
    ) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._devices = devices
        self._loader = loader
        self._tasks = tasks
        self._on_poisoned = on_poisoned
        self.closed = False
        self.residency = Residency(settings.residency, catalogue, self.begin_unload)
        #: By qualified id, of every model that had a request: counters and names outlive an unload.
        self.figures: dict[str, Figures] = {}
        self.public_ids: dict[str, str] = {}

    # -- loading -------------------------------------------------------------------------------

    async def load(self, request: LoadRequest) -> LoadOutcome:
        """One load per model however many ask. Raises the load's own error, AlreadyLoaded, ShuttingDown."""
        started = time.monotonic()
        job = await self.start_or_join(request)
        if job is None:
            return LoadOutcome("loaded", already=True)
        finished = await job.wait(max(0.0, LOAD_WAIT_S - (time.monotonic() - started)))
        return LoadOutcome("loaded" if finished else "loading")

    async def load_to_end(self, request: LoadRequest) -> None:
        """As `load`, however long it takes."""
        job = await self.start_or_join(request)
        if job is not None:
            await job.wait(math.inf)

    async def start_or_join(self, request: LoadRequest) -> LoadJob | None:
        """The job that loads the model; None when it is resident with the same specification (or none was said)."""
        while True:
            if self.closed:
                raise ShuttingDown("The daemon is shutting down.")
            entry, plan = self._plan(request)
            if entry is None:
                entry = self._new_entry(plan)
            elif entry.state is ModelState.UNLOADING:
                await entry.gone.wait()
                continue
            elif entry.state is ModelState.READY:
                _refuse_conflict(entry, request)
                return None
            elif entry.job is not None and not entry.job.done:
                _refuse_conflict(entry, request)
                return entry.job
            return self.start(entry, plan)

    def _plan(self, request: LoadRequest) -> tuple[ModelActor | None, LoadPlan]:
        """The entry meant, and what to load: what was asked, completed by the configuration and by an earlier load."""
        entry = self._catalogue.find(request.model_id)
        own = self._catalogue.settings_of(request.model_id)
        if entry is not None:
            model_id = parse_model_id(entry.source_id, self._settings)
            own = own or self._catalogue.settings_of(entry.source_id, entry.model_id)
        else:
            model_id = parse_model_id(own.id if own is not None else request.model_id, self._settings)
            entry = self._catalogue.find(model_id.qualified)
            own = own or self._catalogue.settings_of(model_id.qualified, model_id.bare)
        spec = _completed(request, own)
        if entry is not None and entry.state is ModelState.POISONED and entry.spec is not None:
            spec = _completed(spec, entry.spec)
        return entry, LoadPlan(model_id, spec, own)

    def _new_entry(self, plan: LoadPlan) -> ModelActor:
        self._forget_failures()
        model_id = plan.model_id
        public_id = self._catalogue.public_id(model_id.bare, model_id.qualified)
        self.public_ids[model_id.qualified] = public_id
        entry = ModelActor(
            public_id,
            model_id.qualified,
            plan.own.aliases if plan.own is not None else (),
            self._settings.limits,
            self._tasks,
            self.figures.setdefault(model_id.qualified, Figures()),
        )
        entry.on_poisoned = self._on_poisoned
        self._catalogue.add(entry)
        return entry

    def _forget_failures(self) -> None:
        """Clients name the models to load: of those that could not be loaded the latest alone are remembered."""
        failed = [entry for entry in self._catalogue if entry.state is ModelState.FAILED]
        failed.sort(key=lambda entry: entry.failed_at or 0.0, reverse=True)
        for entry in failed[KEPT_FAILURES - 1 :]:
            self._remove(entry)

    def _remove(self, entry: ModelActor) -> None:
        """Its name and figures stay when there is something to count, and only then."""
        self._catalogue.remove(entry)
        if not entry.figures.outcomes and not entry.figures.poisonings:
            self.figures.pop(entry.source_id, None)
            self.public_ids.pop(entry.source_id, None)

    def reload(self, entry: ModelActor, state: ModelState) -> None:
        """Load a poisoned entry anew as it was."""
        if self.closed or entry.spec is None:
            return
        _, plan = self._plan(entry.spec)
        self.start(entry, plan, state)

    async def preflight(self, request: LoadRequest) -> PreflightReport:
        """What a load would find before it touches a device."""
        entry, plan = self._plan(request)
        device_ids = self._place(entry, plan)
        known = (self._free_bytes(device_id) for device_id in device_ids)
        return await self._loader.preflight(plan, min((free for free in known if free is not None), default=None))

    def start(self, entry: ModelActor, plan: LoadPlan, state: ModelState = ModelState.LOADING) -> LoadJob:
        """Begin a load of a new, failed or poisoned entry. Nothing of an earlier process is used again."""
        job = LoadJob(plan.spec)
        entry.begin_load(job, state)
        self._tasks.start_soon(self._run, entry, plan, job)
        return job

    async def _run(self, entry: ModelActor, plan: LoadPlan, job: LoadJob) -> None:
        error: NeuronError | None = None
        log.info("load started", model=entry.model_id, source=entry.source_id)
        with job.scope:
            error = await self._attempt(entry, plan, job)
        if job.scope.cancelled_caught:
            error = ShuttingDown("The daemon stops.") if self.closed else _unloading(entry)
        if error is not None:
            entry.load_failed(error)
            if job.scope.cancelled_caught:
                log.info("load ended early", model=entry.model_id, reason=error.code)
            else:
                log.error(
                    "load failed", model=entry.model_id, reason=error.code, detail=error.message, cause=_cause(error)
                )
        job.finish(error)
        if entry.state is ModelState.POISONED and isinstance(error, POISONING):
            # The process of a recovery died as well: while the budget lasts it is tried again.
            self._on_poisoned(entry)

    async def _attempt(self, entry: ModelActor, plan: LoadPlan, job: LoadJob) -> NeuronError | None:
        try:
            await entry.wait_idle(UNLOAD_S)
            entry.release()
            entry.device_ids = device_ids = self._place(entry, plan)
            room = self.residency.room(entry, device_ids, self._free_bytes)
            device = self._devices.port(device_ids)
            resident = await self._loader.load(entry.model_id, plan, device, device_ids, job, room)
        except NeuronError as error:
            return error
        except Exception as error:
            failure = InternalError("The model could not be loaded.")
            failure.__cause__ = error
            return failure
        if entry.state is ModelState.UNLOADING:  # Asked for when nothing was left that could be cancelled.
            resident.slots.close()
            abandon(resident.device, resident.handle)
            return _unloading(entry)
        entry.become_ready(resident)
        return None

    def _place(self, entry: ModelActor | None, plan: LoadPlan) -> tuple[str, ...]:
        """The devices of a load: those asked for, those it is on, or the best. Raises UnsupportedDevice."""
        asked = plan.spec.devices
        if not asked and entry is not None and entry.state is ModelState.READY:
            return entry.device_ids
        others = (other for other in self._catalogue if other is not entry)
        counts = Counter(device_id for other in others for device_id in other.device_ids)
        return self._devices.choose(plan.ranks, asked, counts, plan.model_id.bare)

    def _free_bytes(self, device_id: str) -> int | None:
        return free_bytes(self._devices.get(device_id).info(), self._settings.limits)

    # -- unloading -----------------------------------------------------------------------------

    async def unload(self, model_id: str) -> None:
        """Raises ModelNotFound. Ends within UNLOAD_S whatever the device does."""
        entry = self._catalogue.find(model_id)
        if entry is None:
            entry = self._catalogue.require(model_id)
        self.begin_unload(entry)
        await entry.gone.wait()

    def begin_unload(self, entry: ModelActor) -> None:
        if entry.state is not ModelState.UNLOADING:
            entry.state = ModelState.UNLOADING
            self._tasks.start_soon(self._unload, entry)

    async def _unload(self, entry: ModelActor) -> None:
        deadline = time.monotonic() + UNLOAD_S
        try:
            if entry.job is not None and not entry.job.done:
                entry.job.scope.cancel()
            entry.end_sessions(lambda: _unloading(entry))
            if not await entry.wait_idle(UNLOAD_S / 2):
                log.error("unload: a request is stuck", model=entry.model_id, device=entry.where)
            await self._forget(entry, deadline)
        except Exception as error:
            log.error("unload failed", model=entry.model_id, cause=f"{type(error).__name__}: {error}"[:500])
        finally:
            entry.release()
            self._remove(entry)
            entry.gone.set()
        log.info("model unloaded", model=entry.model_id)

    async def _forget(self, entry: ModelActor, deadline: float) -> None:
        """Drop the weights; when nothing else lives on the device, its process goes too and takes all memory along."""
        resident, device_ids = entry.resident, entry.device_ids
        if not device_ids:
            return
        device = self._devices.port(device_ids)
        shared = not all(self._is_alone(entry, device_id) for device_id in device_ids)
        try:
            if shared and resident is not None and device.info().state == "ready":
                handle = resident.handle
                with anyio.move_on_after(max(0.1, deadline - time.monotonic())) as limit:
                    await device.call(lambda job: Drop(job, handle))
                if limit.cancelled_caught:
                    log.error("unload: the device is stuck", model=entry.model_id, device=entry.where)
        except NeuronError as error:
            log.warning("unload: the device process ended instead", model=entry.model_id, reason=error.code)
        async with anyio.create_task_group() as tasks:
            for device_id in device_ids:
                # Looked at again: a load may have come to it meanwhile.
                if self._is_alone(entry, device_id):
                    left = max(0.1, deadline - REAP_SECONDS - time.monotonic())
                    tasks.start_soon(self._devices.get(device_id).release, left)

    def _is_alone(self, entry: ModelActor, device_id: str) -> bool:
        """Whether no other model uses the process of a device."""
        return all(other is entry or not other.holds_device for other in self._catalogue.on_device(device_id))


def _completed(request: LoadRequest, own: ModelSettings | LoadRequest | None) -> LoadRequest:
    """What the request does not say comes from the model's own [[models]] entry, or from how it was loaded before."""
    if own is None:
        return request
    return LoadRequest(
        model_id=request.model_id,
        quant=request.quant if request.quant is not None else own.quant,
        tensor_parallel=request.tensor_parallel if request.tensor_parallel is not None else own.tensor_parallel,
        devices=request.devices if request.devices is not None else (own.devices or None),
        max_context=request.max_context if request.max_context is not None else own.max_context,
    )


def _refuse_conflict(entry: ModelActor, request: LoadRequest) -> None:
    """Raises AlreadyLoaded when the request says something that the resident (or loading) model is not."""
    spec = entry.spec
    if spec is None:
        return
    artifact = entry.resident.artifact if entry.resident is not None else None
    stored = (artifact.quant or artifact.stored_quant) if artifact is not None else None
    if request.quant is not None and _plain(request.quant) not in (_plain(spec.quant), _plain(stored)):
        raise _conflict(entry, "quant")
    if request.tensor_parallel is not None and (request.tensor_parallel or 1) != (spec.tensor_parallel or 1):
        raise _conflict(entry, "tensor_parallel")
    if request.max_context is not None and request.max_context != spec.max_context:
        raise _conflict(entry, "max_context")
    if request.devices and not set(entry.device_ids) <= set(request.devices):
        raise _conflict(entry, "devices")


def _plain(value: object) -> str:
    return str(value).replace("_", "").casefold()


def _conflict(entry: ModelActor, field: str) -> AlreadyLoaded:
    return AlreadyLoaded(
        f"The model '{entry.model_id}' is already loaded with another {field}; unload it first.",
        param=field,
        model_id=entry.model_id,
    )


def _unloading(entry: ModelActor) -> ModelUnloading:
    return ModelUnloading("The model is being unloaded.", model_id=entry.model_id)


def _cause(error: NeuronError) -> str | None:
    cause = error.__cause__
    return f"{type(cause).__name__}: {cause}"[:500] if cause is not None else None
