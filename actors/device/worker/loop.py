"""The job loop of a device process: receive a job, do it, reply. Blocking, on the main thread."""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from neuron.actors.device import jobs
from neuron.actors.device.jobs import PROTOCOL_VERSION, Done, Fault, Job, Logits, Reply
from neuron.actors.device.phases import FORWARDS, phase_of
from neuron.actors.device.worker.classify import NanLogitsError, RequestFault
from neuron.actors.device.worker.failpoints import Action, Hit, failpoints, inert
from neuron.actors.device.worker.groups import Accord, Memberships, accord
from neuron.actors.device.worker.heartbeat import Heartbeat
from neuron.actors.device.worker.images import Row, encode_image, forward
from neuron.actors.device.worker.loads import LoadJob, build_model, collectives_for, group_of, loaded
from neuron.actors.device.worker.platform import Platform, bind
from neuron.actors.device.worker.prefixes import POINTS, PrefixJob, do_prefix_job
from neuron.actors.device.worker.slab import Resident, Slab
from neuron.actors.device.worker.verdicts import conclude, examine
from neuron.kernels.engine import DeviceModel
from neuron.runtime.errors import ProtocolError
from neuron.runtime.link import BlockingLink, LinkClosed
from neuron.runtime.logs import get_logger

EXIT_OK = 0
EXIT_PROTOCOL = 64
EXIT_DEVICE_FAULT = 70
EXIT_ORPHAN = 83

_log = get_logger("neuron.device")


class DeadDevice(Exception):
    """A fault was answered that the process must not survive."""


class LoadStopped(RequestFault):
    """Whoever wanted the load has left: a Drop of its model waits behind it."""

    def __init__(self) -> None:
        super().__init__("load_stopped", "the model is to be dropped before it is loaded")


class _Ended(Exception):
    """Shutdown was answered."""


Binds = Callable[[str], Platform]


class WorkerLoop:
    """One device process's life after its start. `run` returns the exit status; it ends no process itself."""

    def __init__(self, link: BlockingLink[Job], *, bind_device: Binds = bind, pid: int = 0) -> None:
        self._link = link
        self._bind = bind_device
        self._pid = pid
        self._hit: Hit = inert
        self._platform: Platform
        self._slab: Slab
        self._groups = Memberships()
        self._heart = Heartbeat(link)
        #: The thread of `run`.
        self._thread = 0

    # -- life ------------------------------------------------------------------------------------

    def run(self) -> int:
        """Greet, then serve until Shutdown, a device fault, or the end of the link."""
        self._thread = threading.get_ident()
        try:
            if not self._greet():
                return EXIT_PROTOCOL
            self._heart.start()
            while True:
                job = self._link.receive(None)
                if job is not None:
                    self._answer(job)
        except _Ended:
            return EXIT_OK
        except DeadDevice:
            return EXIT_DEVICE_FAULT
        except ProtocolError as error:
            _log.error("the link cannot be trusted", reason=error.message)
            return EXIT_PROTOCOL
        except LinkClosed:
            return EXIT_ORPHAN
        finally:
            self._heart.stop()
            self._groups.close()

    def _greet(self) -> bool:
        hello = self._link.receive(None)
        if not isinstance(hello, jobs.Hello) or hello.protocol != PROTOCOL_VERSION:
            job = 0 if hello is None else hello.job
            text = f"a Hello of protocol {PROTOCOL_VERSION} was expected"
            self._link.send(Fault(job, "protocol", 0, "protocol_error", text, True, "start"))
            return False
        self._hit = failpoints(hello.failpoints, hello.device)
        if self._hit is not inert:
            _log.warning("failpoints are active in this device process")
        fault = self._attempt(hello, lambda: self._bind_device(hello))
        if isinstance(fault, Fault):
            # A process without a device is of no use, whatever the reason.
            self._link.send(msgspec.structs.replace(fault, device_fault=True))
            raise DeadDevice
        self._link.send(fault)
        return True

    def _bind_device(self, hello: jobs.Hello) -> Reply:
        self._hit("worker.start")
        self._platform = bound = self._bind(hello.device)
        self._slab = Slab(bound)
        try:
            bound.probe()
        except Exception as error:
            raise RequestFault("device_unhealthy", "the probe of the fresh process failed") from error
        facts = bound.facts()
        return jobs.Ready(
            hello.job,
            PROTOCOL_VERSION,
            self._pid,
            hello.device,
            facts.name,
            facts.vram_total_mb,
            facts.compute_capability,
            facts.cuda_version,
            facts.driver_version,
            facts.torch_version,
        )

    def _answer(self, job: Job) -> None:
        reply = self._attempt(job, lambda: self._dispatch(job))
        self._heart.steps += 1
        action = self._hit("worker.reply")
        if action is None:
            self._link.send(reply)
        else:
            self._misreply(reply, action)
        if isinstance(reply, Fault) and reply.device_fault:
            raise DeadDevice
        if isinstance(job, jobs.Shutdown):
            raise _Ended

    def _attempt(self, job: Job, work: Callable[[], Reply]) -> Reply:
        """`work`, or the Fault that its exception amounts to. Device memory held by a traceback is free again then."""
        try:
            return work()
        except LoadStopped as error:
            failure = examine(error)
            _log.info("load stopped", kind=type(job).__name__)
        except Exception as error:
            failure = examine(error)
            _log.error("job failed", kind=type(job).__name__, reason=failure.classified.rule, exc_info=True)
        if isinstance(job, (*FORWARDS, jobs.RestorePrefix)):
            self._forget(job)
        fault = conclude(job.job, failure, phase_of(job), self._probe_now)
        return fault

    def _forget(self, job: jobs.ForwardLogits | jobs.ForwardLogitsWithImages | jobs.RestorePrefix) -> None:
        """After a failed step a sequence may hold half of it: it holds nothing from here on."""
        try:
            self._slab.get(job.handle).model.clear(job.sequence, 0)
        except Exception as error:  # The device is worse off than the first error said; the probe will tell.
            _log.warning("sequence not cleared", reason=str(error))

    def _dispatch(self, job: Job) -> Reply:
        handler = _HANDLERS.get(type(job))
        if handler is None:
            raise RequestFault("unsupported", f"{type(job).__name__} is not supported by this build")
        return handler(self, job)

    # -- jobs ------------------------------------------------------------------------------------

    def _query_vram(self, job: jobs.QueryVram) -> Reply:
        return self._platform.vram(job.job)

    def _probe_now(self) -> None:
        self._hit("worker.probe")
        self._platform.trim()
        self._platform.probe()

    def _probe(self, job: jobs.Probe) -> Reply:
        try:
            self._probe_now()
        except Exception as error:
            raise ProbeFailed("the probe failed") from error
        return Done(job.job)

    def _attach(self, job: jobs.AttachSlots) -> Reply:
        self._hit("worker.attach")
        self._slab.attach(job.handle, job.name, job.rows, job.row_bytes)
        return Done(job.job)

    def _load(self, job: LoadJob) -> Reply:
        self._slab.check_free(job.handle)
        membership = self._groups.get(group_of(job))
        model: DeviceModel | None = None
        try:
            with accord(membership, job, self._hit) as agreed:
                self._hit("worker.load.begin")
                watched = None if membership is None else collectives_for(membership, job, self._hit)
                model = build_model(
                    job, self._platform.id, self._link.send, lambda: self._load_step(job, agreed), watched
                )
                self._hit("worker.load.end")
            self._slab.put(job.handle, model, membership)
        except BaseException:
            if model is not None:
                model.close()
            raise
        return loaded(job.job, model)

    def _load_step(self, job: LoadJob, agreed: Accord | None) -> None:
        self._heart.steps += 1
        self._hit("worker.load.progress")
        # Not from a thread that only tells of progress: the link is read by this one alone.
        here = threading.get_ident() == self._thread
        if here and any(isinstance(later, jobs.Drop) and later.handle == job.handle for later in self._link.arrived()):
            raise LoadStopped
        if agreed is not None:
            agreed.check()

    def _drop(self, job: jobs.Drop) -> Reply:
        self._hit("worker.drop")
        self._slab.drop(job.handle)
        self._platform.trim()
        return Done(job.job)

    def _clear_kv(self, job: jobs.ClearKv) -> Reply:
        self._hit("worker.clear_kv")
        return Done(job.job, self._slab.get(job.handle).model.clear(job.sequence, job.keep))

    def _prefix(self, job: PrefixJob) -> Reply:
        self._hit(POINTS[type(job)])
        return Done(job.job, do_prefix_job(self._slab.get(job.handle).model, job))

    def _encode_image(self, job: jobs.EncodeImage) -> Reply:
        resident = self._slab.get(job.handle)
        with accord(resident.membership, job, self._hit):
            self._hit("worker.vision.encode")
            places = encode_image(resident.model, job)
        return Done(job.job, places)

    def _forward(self, job: jobs.ForwardLogits | jobs.ForwardLogitsWithImages) -> Reply:
        resident = self._slab.get(job.handle)
        started = time.perf_counter_ns()
        with accord(resident.membership, job, self._hit):
            tokens = np.frombuffer(job.tokens, dtype="<i4").astype(np.int32, copy=False)
            if len(tokens) == 0:
                raise ValueError("there are no tokens to run")
            action = self._hit("worker.decode.step" if phase_of(job) == "decode" else "worker.prefill.chunk")
            row = None if job.slot is None else resident.row(job.slot)
            forward(resident.model, job, tokens, row)
        if row is None or job.slot is None:
            return Done(job.job)
        if resident.leads:
            _finish_row(resident, job, row, action)
        elapsed_us = (time.perf_counter_ns() - started) // 1000
        return Logits(job.job, job.slot, job.stamp, job.position + len(tokens), elapsed_us)

    def _group_init(self, job: jobs.GroupInit) -> Reply:
        self._hit("tp.init")
        self._groups.join(job, self._platform.id)
        return Done(job.job)

    def _group_sanity(self, job: jobs.GroupSanity) -> Reply:
        membership = self._groups.get(job.group)
        if membership is None:
            raise RequestFault("internal_error", "no group was named")
        with accord(membership, job, self._hit):
            pass
        collectives = membership.collectives
        return Done(job.job, membership.world_size if collectives is None else collectives.sanity())

    def _shutdown(self, job: jobs.Shutdown) -> Reply:
        self._slab.clear()
        return Done(job.job)

    # -- failpoints ------------------------------------------------------------------------------

    def _misreply(self, reply: Reply, action: Action) -> None:
        """What a broken process might send instead of `reply`."""
        match action:
            case Action.DROP_REPLY:
                return
            case Action.DUPLICATE_REPLY:
                self._link.send(reply)
                self._link.send(reply)
            case Action.CORRUPT_STAMP if isinstance(reply, Logits):
                self._link.send(msgspec.structs.replace(reply, stamp=reply.stamp + 1))
            case Action.WRONG_VALUE if isinstance(reply, Done):
                self._link.send(msgspec.structs.replace(reply, value=reply.value + 1))
            case Action.WRONG_VALUE if isinstance(reply, Logits):
                self._link.send(msgspec.structs.replace(reply, position=reply.position + 1))
            case Action.WRONG_JOB:
                self._link.send(msgspec.structs.replace(reply, job=reply.job + 1000))
            case Action.GARBAGE:
                self._link.send(Garbage("not a reply"))
            case _:
                self._link.send(reply)


#: A job that is not here is answered with a Fault named "unsupported".
_HANDLERS: dict[type, Callable[[WorkerLoop, Any], Reply]] = {
    jobs.QueryVram: WorkerLoop._query_vram,
    jobs.Probe: WorkerLoop._probe,
    jobs.AttachSlots: WorkerLoop._attach,
    jobs.LoadDense: WorkerLoop._load,
    jobs.LoadGguf: WorkerLoop._load,
    jobs.LoadShard: WorkerLoop._load,
    jobs.LoadScripted: WorkerLoop._load,
    jobs.Drop: WorkerLoop._drop,
    jobs.ClearKv: WorkerLoop._clear_kv,
    **dict.fromkeys(POINTS, WorkerLoop._prefix),
    jobs.EncodeImage: WorkerLoop._encode_image,
    jobs.ForwardLogits: WorkerLoop._forward,
    jobs.ForwardLogitsWithImages: WorkerLoop._forward,
    jobs.GroupInit: WorkerLoop._group_init,
    jobs.GroupSanity: WorkerLoop._group_sanity,
    jobs.Shutdown: WorkerLoop._shutdown,
}


class ProbeFailed(Exception):
    """The probe that the daemon asked for failed: unknown to the fault table, hence fatal."""


class Garbage(msgspec.Struct, frozen=True):
    """A frame that is no message of the protocol (failpoints only)."""

    text: str


def _finish_row(
    resident: Resident, job: jobs.ForwardLogits | jobs.ForwardLogitsWithImages, row: Row, action: Action | None
) -> None:
    """Look at the row that was written, then stamp it. Raises NanLogitsError."""
    if action is Action.NAN:
        row.fill(np.nan)
    elif action is Action.SKEW:
        np.negative(row, out=row)
    # The maximum is NaN when any value is, and infinite when no value can be chosen.
    if not math.isfinite(row.max()):
        raise NanLogitsError("no finite maximum in the logits")
    assert resident.slots is not None
    assert job.slot is not None
    resident.slots.set_stamp(job.slot, job.stamp)
