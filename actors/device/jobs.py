"""Every message that crosses the link between the daemon and a device process, one struct per verb.

Encoded as MessagePack arrays tagged with the class name. A job carries an id that its replies echo as `job`.
No behaviour lives here.
"""

from typing import NewType

import msgspec

PROTOCOL_VERSION = 2
PEER_FAILED = "peer_failed"
"""`reason` of a Fault that only says that another rank of the group could not begin the job."""
PEER_DIVERGED = "peer_diverged"
"""`reason` of a Fault that only says that another rank was given, or holds, something else."""
ECHOES = ("gloo_", "nccl_", "peer_")
"""How a `reason` begins that tells what a rank saw of another one, which knows more."""

ArchHandle = NewType("ArchHandle", int)
"""Names a model inside one device process; chosen by the daemon, never reused."""
TpHandle = NewType("TpHandle", int)
"""Names one rank's shard of a tensor-parallel model; same number on every rank."""
Sequence = NewType("Sequence", int)
"""Names one sequence (KV cache, conv and recurrent state, position) of a model."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of everything on the link. `job` is the id of the job; 0 for what answers no job."""

    job: int


# -- jobs: daemon -> device process ------------------------------------------------------------


class Hello(Message, frozen=True):
    """First frame. The worker binds `device` and answers Ready, or Fault and exits."""

    protocol: int
    device: str
    failpoints: str | None = None


class QueryVram(Message, frozen=True):
    """Answered with Vram."""


class Probe(Message, frozen=True):
    """Tiny allocation, kernel and synchronisation; Done when the device still computes right."""


class AttachSlots(Message, frozen=True):
    """Attach the logits segment `name` (`rows` slots of `row_bytes`) for model `handle`; Done once mapped."""

    handle: ArchHandle
    name: str
    rows: int
    row_bytes: int


class LoadDense(Message, frozen=True):
    """Load safetensors. Answered by Progress*, then Loaded or Fault.

    `quant` names an in-situ quantisation ("q8_0", ... or "bf16"/"f16"/"f32"), None keeps what is stored.
    `config` is the path of config.json.
    """

    handle: ArchHandle
    config: str
    files: tuple[str, ...]
    max_context: int
    quant: str | None = None


class LoadGguf(Message, frozen=True):
    """Load a GGUF file (all parts of a split one, in order). Answered like LoadDense.

    `projector`: the mmproj file with the model's vision tower.
    """

    handle: ArchHandle
    files: tuple[str, ...]
    max_context: int
    projector: str | None = None


class LoadShard(Message, frozen=True):
    """Load the part of a safetensors model that falls to this rank of `group`. Answered like LoadDense."""

    handle: TpHandle
    group: int
    config: str
    files: tuple[str, ...]
    max_context: int
    quant: str | None = None


class LoadScripted(Message, frozen=True):
    """Load a script file (contract: the scripted backend). Answered like LoadDense."""

    handle: ArchHandle
    path: str
    #: (digest of the script, turn, count) of faults that fired in earlier loads; filled by the device actor.
    fired: tuple[tuple[str, int, int], ...] = ()
    #: 0: alone; otherwise each rank of this group runs the script, and rank 0's row counts.
    group: int = 0


class Drop(Message, frozen=True):
    """Forget a model and give its memory back; Done also when the handle is unknown. A load of it that runs is stopped
    at its next step, and answered with a Fault."""

    handle: ArchHandle


class ClearKv(Message, frozen=True):
    """Forget what `sequence` holds beyond its first `keep` positions; Done carries the position kept.

    A model that cannot cut back to `keep` (recurrent state) goes back to 0 and says so.
    """

    handle: ArchHandle
    sequence: Sequence
    keep: int = 0


class SaveRows(Message, frozen=True):
    """Keep a copy of the KV rows of positions begin..end-1 of `sequence` as block `block`; Done carries its bytes.

    Block numbers are above 0, chosen by the daemon and never reused for a model.
    """

    handle: ArchHandle
    sequence: Sequence
    block: int
    begin: int
    end: int


class SaveState(Message, frozen=True):
    """Keep a copy of the recurrent state of `sequence` at its present length as `block`; Done carries its bytes."""

    handle: ArchHandle
    sequence: Sequence
    block: int


class RestorePrefix(Message, frozen=True):
    """Make `sequence` hold its own first `keep` tokens, then those of the blocks `rows`; Done carries the length.

    `state` is the block of the recurrent state at that length, 0 for a model without one. On a Fault the
    sequence holds nothing.
    """

    handle: ArchHandle
    sequence: Sequence
    keep: int
    rows: tuple[int, ...]
    state: int


class DropBlocks(Message, frozen=True):
    """Forget blocks, unknown ones passed over; Done carries the bytes given back."""

    handle: ArchHandle
    blocks: tuple[int, ...]


class ForwardLogits(Message, frozen=True):
    """Run `tokens` (little-endian int32) at `position` of `sequence`.

    With `slot`, the last position's logits are written as float32 to that slot, stamped `stamp`, and
    Logits answers; without, the tokens only fill the cache (a prefill chunk) and Done answers.
    """

    handle: ArchHandle
    sequence: Sequence
    tokens: bytes
    position: int
    slot: int | None
    stamp: int


class EncodeImage(Message, frozen=True):
    """Run the vision tower on pixels in shared memory; the embeddings stay on the device as `image` of `sequence`
    until that has passed over them, or is cut back or put together anew. Done carries how many places they fill.

    `pixels`: name of a byte segment that holds uint8 [h * w, 3 * patch * patch], patches in blocks of merge x merge;
    `grid`: (1, h, w) in patches. A value v of channel c enters the tower as (v * rescale - mean[c]) / std[c].
    """

    handle: ArchHandle
    image: int
    pixels: str
    grid: tuple[int, int, int]
    sequence: Sequence = Sequence(0)
    rescale: float = 1 / 255
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)


class ForwardLogitsWithImages(Message, frozen=True):
    """ForwardLogits whose image-pad positions are filled from encoded images.

    `spans`: (image, offset of its first pad token within the whole sequence, length), those that these tokens touch.
    `positions`: little-endian int32 [3, len(tokens)] M-RoPE positions, row-major bytes. `rope_delta`: the M-RoPE
    position of the next token minus the sequence's length after these; kept for decode.
    """

    handle: ArchHandle
    sequence: Sequence
    tokens: bytes
    position: int
    slot: int | None
    stamp: int
    spans: tuple[tuple[int, int, int], ...]
    positions: bytes
    rope_delta: int


class GroupInit(Message, frozen=True):
    """Join the tensor-parallel group that meets in the directory `store`; Done when all ranks are in.

    `group` is a number above 0 that the daemon chose for these processes. With `collectives` tensors can be summed
    over it, without (scripts) the ranks only agree on jobs; a group may be given them later. `replaces`: a group that
    these processes were in before and need no more, or 0. Fault `tp_init_failed` past `timeout_s`.
    """

    group: int
    rank: int
    world_size: int
    store: str
    timeout_s: float
    collectives: bool
    replaces: int = 0


class GroupSanity(Message, frozen=True):
    """An agreement, and an all-reduce of 1 where there are collectives; Done carries the world size."""

    group: int


class Shutdown(Message, frozen=True):
    """Drop everything and exit 0; Done is sent first."""


Job = (
    Hello
    | QueryVram
    | Probe
    | AttachSlots
    | LoadDense
    | LoadGguf
    | LoadShard
    | LoadScripted
    | Drop
    | ClearKv
    | SaveRows
    | SaveState
    | RestorePrefix
    | DropBlocks
    | ForwardLogits
    | EncodeImage
    | ForwardLogitsWithImages
    | GroupInit
    | GroupSanity
    | Shutdown
)

# -- replies: device process -> daemon ---------------------------------------------------------


class Ready(Message, frozen=True):
    """The worker is bound. Versions and device facts for /discovery and /version; MiB units."""

    protocol: int
    pid: int
    device: str
    name: str
    vram_total_mb: int
    compute_capability: str
    cuda_version: str | None
    driver_version: str | None
    torch_version: str | None


class Vram(Message, frozen=True):
    """MiB. On a CPU device: the host's memory, or its cgroup's."""

    used_mb: int
    free_mb: int
    total_mb: int
    utilization_pct: int = 0
    temp_c: int = 0


class Done(Message, frozen=True):
    """The job is complete. `value` is what the job's docstring says, else 0."""

    value: int = 0


class Progress(Message, frozen=True):
    """Not terminal: how far a load is. `stage`: "read" or "compile"."""

    stage: str
    fraction: float


class Loaded(Message, frozen=True):
    """A model is resident. Bytes are what the device process holds for it."""

    vocab_size: int
    context_length: int
    weights_bytes: int
    kv_bytes_per_token: int
    state_bytes: int
    workspace_bytes: int
    summary: str


class Logits(Message, frozen=True):
    """Logits are in `slot` with `stamp`. `position` is the sequence's length now; times in microseconds."""

    slot: int
    stamp: int
    position: int
    compute_us: int


class Beat(Message, frozen=True):
    """Heartbeat of the worker's side thread (job 0). `steps` counts units of work done so far."""

    steps: int


class ScriptFaultFired(Message, frozen=True):
    """Scripted backend only (job 0): the fault of `turn` of the script `digest` is about to fire."""

    digest: str
    turn: int


class Fault(Message, frozen=True):
    """The job failed. Classified in the worker, where the exception object is.

    `kind`: "device", "oom", "host", "nan", "load", "protocol"; `code`: numeric device code or 0;
    `name`: the public error code to answer with; `message`: for the log, not for clients;
    `device_fault`: the process cannot go on and ends after this frame.
    """

    kind: str
    code: int
    name: str
    message: str
    device_fault: bool
    phase: str = ""
    public: str = ""
    #: Short name of the rule that decided ("illegal_address", "probe_failed", "unclassified"), for records and logs.
    reason: str = ""


Reply = Ready | Vram | Done | Progress | Loaded | Logits | Beat | ScriptFaultFired | Fault
