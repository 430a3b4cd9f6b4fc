"""The JSON bodies of the control routes, one struct each. Keys a gateway needs (R) are required and never null here.

`/openapi.json` is made from these types.
"""

import msgspec

Struct = msgspec.Struct


class Failure(Struct, frozen=True):
    model_id: str
    error: str


class ActivationBody(Struct, frozen=True):
    state: str
    pending: tuple[str, ...]
    in_progress: str | None
    completed: tuple[str, ...]
    failed: tuple[Failure, ...]


class DeviceBody(Struct, frozen=True):
    """R: index, the two figures of memory, utilization and temperature; 0 when unknown."""

    index: int
    vram_used_mb: int
    vram_free_mb: int
    utilization_pct: int
    temp_c: int
    vram_total_mb: int
    id: str
    name: str
    state: str
    pid: int | None
    last_seen_s: float | None


class QueueBody(Struct, frozen=True):
    req_id: str
    position: int
    waited_s: float


class PrefixCacheBody(Struct, frozen=True):
    """What a model keeps of earlier prompts, since it was loaded."""

    hits: int
    misses: int
    reused_tokens: int
    evictions: int
    refused: int
    failed_restores: int
    restore_ms: float
    bytes_used: int
    bytes_budget: int
    entries: int


class ModelLoadBody(Struct, frozen=True):
    """R: id, in_flight, queue_depth and the counters after them."""

    id: str
    in_flight: int
    queue_depth: int
    max_in_flight: int
    max_queue_depth: int
    rejected_queue_full: int
    rejected_timeout: int
    rejected_per_principal: int
    tok_s_prefill: float
    tok_s_decode: float
    status: str
    state: str
    active_request_id: str | None
    active_for_s: float | None
    queue: tuple[QueueBody, ...]
    prefix_cache: PrefixCacheBody | None = None


class HealthBody(Struct, frozen=True):
    status: str
    version: str
    uptime_secs: int
    uptime_s: float
    activation: ActivationBody
    devices: tuple[DeviceBody, ...]
    models: tuple[ModelLoadBody, ...]


class LimitBody(Struct, frozen=True):
    context: int
    input: int
    output: int


class ServableBody(Struct, frozen=True):
    """`reason` and `detail` are "" when all is well: gateways take an absent or null key for another type."""

    ok: bool
    reason: str = ""
    detail: str = ""


class ModelBody(Struct, frozen=True):
    """R: the keys up to vram_used_mb."""

    id: str
    harness: str
    status: str
    devices: tuple[int, ...]
    capabilities: tuple[str, ...]
    limit: LimitBody
    tool_call: bool
    reasoning: bool
    servable: ServableBody
    vram_used_mb: int | None
    state: str
    reason: str | None
    poisoned_at: str | None
    device_ids: tuple[str, ...]
    source_id: str
    tensor_parallel: int
    quant: str | None
    format: str
    architecture: str
    context_length: int
    loaded_at: str | None
    aliases: tuple[str, ...]
    own_chat_template: bool


class EndpointBody(Struct, frozen=True):
    url: str


class CapabilitiesBody(Struct, frozen=True):
    capabilities: tuple[str, ...]


class LoadBody(Struct, frozen=True, omit_defaults=True):
    status: str
    already: bool = False


class StatusBody(Struct, frozen=True):
    status: str


class OpenAiModel(Struct, frozen=True):
    id: str
    object: str
    created: int
    owned_by: str
    capabilities: tuple[str, ...]
    context_length: int
    max_model_len: int
    status: str


class OpenAiModels(Struct, frozen=True):
    object: str
    data: tuple[OpenAiModel, ...]


class VersionBody(Struct, frozen=True):
    package_version: str
    git_sha: str
    git_dirty: bool
    features: tuple[str, ...]
    python_version: str
    torch_version: str
    numba_version: str


class DiscoveredDevice(Struct, frozen=True):
    index: int
    name: str
    vram_total_mb: int
    compute_capability: str


class DiscoveryBody(Struct, frozen=True):
    """R: all keys; `cuda_unavailable_reason` stands beside them when a GPU is there but unusable."""

    hostname: str
    os: str
    kernel: str
    cuda_version: str | None
    driver_version: str | None
    devices: tuple[DiscoveredDevice, ...]
    harnesses: tuple[str, ...]
    max_prompt_tokens: int


class RequestBody(Struct, frozen=True):
    """`outcome`: "running", a finish reason or an error code. Times in milliseconds."""

    req_id: str
    model: str
    phase: str
    outcome: str
    ended_at: str | None
    #: The keys are not those of `usage`, which gateways look for anywhere in a body.
    tokens_in: int
    tokens_out: int
    tokens_reused: int
    queue_ms: float
    ttft_ms: float | None
    total_ms: float
    tok_s_decode: float


class RequestsBody(Struct, frozen=True):
    """Those that wait or run, then the latest that ended, newest first."""

    requests: tuple[RequestBody, ...]


class PublicError(Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct, frozen=True):
    error: PublicError
