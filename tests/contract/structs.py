"""What the reference's gateway parses of a neuron, field for field and type for type.

Extra keys are ignored, as there. Everything without a default is required.
"""

import enum

import msgspec


class Struct(msgspec.Struct, frozen=True):
    """Base: strict types, unknown keys ignored."""


class State(enum.Enum):
    """Any other word fails the whole answer."""

    PRE_WARMING = "pre_warming"
    READY = "ready"


class Failure(Struct, frozen=True):
    model_id: str
    error: str


class Activation(Struct, frozen=True):
    state: State
    pending: list[str]
    in_progress: str | None
    completed: list[str]
    failed: list[Failure]


class DeviceHealth(Struct, frozen=True):
    index: int
    vram_used_mb: int
    vram_free_mb: int
    utilization_pct: int
    temp_c: int


class ModelLoad(Struct, frozen=True):
    id: str
    in_flight: int
    queue_depth: int
    max_in_flight: int
    max_queue_depth: int
    rejected_queue_full: int
    rejected_timeout: int
    tok_s_prefill: float
    tok_s_decode: float


class Health(Struct, frozen=True):
    uptime_secs: int
    activation: Activation
    devices: list[DeviceHealth]
    models: list[ModelLoad]


class DiscoveredDevice(Struct, frozen=True):
    index: int
    name: str
    vram_total_mb: int
    compute_capability: str


class Discovery(Struct, frozen=True):
    hostname: str
    os: str
    kernel: str
    cuda_version: str | None
    driver_version: str | None
    devices: list[DiscoveredDevice]
    harnesses: list[str]
    max_prompt_tokens: int


class Limit(Struct, frozen=True):
    context: int
    input: int
    output: int


class Servable(Struct, frozen=True):
    ok: bool
    reason: str
    detail: str


class Model(Struct, frozen=True):
    id: str
    harness: str
    status: str
    devices: list[int]
    capabilities: list[str]
    limit: Limit
    tool_call: bool
    reasoning: bool
    servable: Servable
    vram_used_mb: int | None


class Version(Struct, frozen=True):
    package_version: str
    git_sha: str
    features: list[str]


class Endpoint(Struct, frozen=True):
    url: str


class Capabilities(Struct, frozen=True):
    capabilities: list[str]


class Status(Struct, frozen=True):
    status: str


class Cached(Struct, frozen=True):
    cached_tokens: int


class Reasoned(Struct, frozen=True):
    reasoning_tokens: int


class HelexaTiming(Struct, frozen=True):
    prefill_ms: int
    decode_ms: int
    prefill_tokens: int


class Usage(Struct, frozen=True):
    """The three counts are required, and each *_details object needs its own."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    helexa_timing: HelexaTiming
    prompt_tokens_details: Cached
    completion_tokens_details: Reasoned


class FunctionDelta(Struct, frozen=True):
    name: str = ""
    arguments: str = ""


class CallDelta(Struct, frozen=True):
    index: int
    function: FunctionDelta
    id: str = ""
    type: str = "function"


class Delta(Struct, frozen=True):
    """A null in any of these makes the frame unparsable there."""

    role: str = ""
    content: str = ""
    reasoning_content: str = ""
    tool_calls: list[CallDelta] = []


class Choice(Struct, frozen=True):
    index: int
    delta: Delta
    finish_reason: str | None


class Chunk(Struct, frozen=True):
    """`usage` may be null only where the client asked for a chunk of its own for it."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None
