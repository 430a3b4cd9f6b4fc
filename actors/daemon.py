"""What the front doors may ask of the daemon. `api` is written against these; `actors.registry` implements them."""

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from neuron.actors.events import InferenceEvent
from neuron.actors.figures import Figures, RequestRecord
from neuron.actors.request import InferenceRequest
from neuron.actors.settings import Settings


class ModelState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    POISONED = "poisoned"
    RECOVERING = "recovering"
    UNLOADING = "unloading"
    FAILED = "failed"


class PoisonRecord(msgspec.Struct, frozen=True):
    reason: str
    code: int
    phase: str
    req_id: str | None
    at: str
    exit_status: str | None = None
    #: Of a tensor-parallel group, which rank was the cause.
    rank: int | None = None


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Cached view of one model; never waits for a device. Field meanings as on GET /models in the contract."""

    id: str
    source_id: str
    state: ModelState
    devices: tuple[int, ...]
    device_ids: tuple[str, ...]
    capabilities: tuple[str, ...]
    context: int
    input: int
    output: int
    tool_call: bool
    reasoning: bool
    servable: bool
    servable_reason: str | None = None
    servable_detail: str | None = None
    vram_used_mb: int | None = None
    reason: str | None = None
    poison: PoisonRecord | None = None
    tensor_parallel: int = 1
    quant: str | None = None
    format: str = ""
    architecture: str = ""
    loaded_at: str | None = None
    aliases: tuple[str, ...] = ()
    #: False when the model's own template is missing or switched off and ChatML is used.
    own_chat_template: bool = True


class OfferedModel(msgspec.Struct, frozen=True):
    """A configured model that is not resident and that a request would load. `context` is 0 when nothing says it."""

    id: str
    capabilities: tuple[str, ...]
    context: int = 0


class QueueEntry(msgspec.Struct, frozen=True):
    req_id: str
    position: int
    waited_s: float


class PrefixCacheFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a resident model keeps of earlier prompts, and how often that helped, since it was loaded."""

    hits: int
    misses: int
    reused_tokens: int
    evictions: int
    #: Times that something was not kept because nothing could make room for it.
    refused: int
    failed_restores: int
    restore_ms: float
    bytes_used: int
    bytes_budget: int
    entries: int


class ModelLoadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `models` in GET /health."""

    id: str
    state: ModelState
    in_flight: int
    queue_depth: int
    max_in_flight: int
    max_queue_depth: int
    rejected_queue_full: int
    rejected_timeout: int
    rejected_per_principal: int
    tok_s_prefill: float
    tok_s_decode: float
    active_request_id: str | None
    active_for_s: float | None
    queue: tuple[QueueEntry, ...]
    #: None while the model is not resident, and when the cache is switched off.
    prefix_cache: PrefixCacheFigures | None = None


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`state`: "ready", "starting", "idle" (no process yet), "dead"."""

    index: int
    id: str
    name: str
    state: str
    pid: int | None
    compute_capability: str
    vram_total_mb: int
    vram_used_mb: int
    vram_free_mb: int
    utilization_pct: int
    temp_c: int
    last_seen_s: float | None
    #: Processes started for it, and those that ended unexpectedly, since the daemon began.
    starts: int = 0
    deaths: int = 0


class Activation(msgspec.Struct, frozen=True):
    """`state`: "pre_warming" | "ready". One id in exactly one list. `failed`: (model_id, error)."""

    state: str
    pending: tuple[str, ...]
    in_progress: str | None
    completed: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`devices` are device ids ("cpu", "cuda:1"). None means: not said."""

    model_id: str
    quant: str | None = None
    tensor_parallel: int | None = None
    devices: tuple[str, ...] | None = None
    max_context: int | None = None


class LoadOutcome(msgspec.Struct, frozen=True):
    """`status`: "loaded", or "loading" after the wait limit; `already`: it was resident."""

    status: str
    already: bool = False


class LoadProgress(msgspec.Struct, frozen=True):
    stage: str
    fraction: float


class InferenceStream(Protocol):
    """The reader's end of one request. Leaving early: `cancel` (sync, never blocks); the session does the rest."""

    async def next(self, wait_s: float) -> InferenceEvent | None:
        """The next event; None when `wait_s` seconds passed without one. After Finish or Failed, do not call again."""

    def cancel(self, reason: str = "client_disconnected") -> None: ...


class Daemon(Protocol):
    settings: Settings

    def models(self, *, everything: bool = False) -> list[ModelInfo]: ...

    def offered(self) -> list[OfferedModel]:
        """What [residency] load_on_request adds to the resident models."""

    def model(self, model_id: str) -> ModelInfo:
        """Bare, qualified or alias id. Raises ModelNotFound."""

    async def capabilities(self, model_id: str) -> tuple[str, ...]:
        """From the resident model, else from local files, read off the event loop. Raises ModelNotFound."""

    def load_figures(self) -> list[ModelLoadFigures]: ...

    def figures(self) -> dict[str, Figures]:
        """Counters and histograms by model id, of every model loaded since the daemon began. Read only."""

    def request_records(self) -> list[RequestRecord]:
        """Those that wait or run, then the latest that ended, newest first."""

    def devices(self) -> list[DeviceInfo]: ...

    def activation(self) -> Activation: ...

    def draining(self) -> bool: ...

    def discovery(self) -> dict[str, Any]:
        """The facts of GET /discovery (hostname, os, kernel, cuda_version, ...), gathered once."""

    async def load(self, request: LoadRequest) -> LoadOutcome: ...

    def load_progress(self, request: LoadRequest) -> AsyncIterator[LoadProgress | LoadOutcome]:
        """Starts or joins the load; ends with the outcome or raises what `load` raises."""

    async def unload(self, model_id: str) -> None: ...

    async def submit(self, request: InferenceRequest) -> InferenceStream:
        """All gates that need no waiting run here and raise NeuronError (so that a stream gets its status)."""

    async def preflight(self, request: LoadRequest) -> dict[str, Any]: ...
