"""What a device process asks of a model: load it, run tokens, forget. The seam between actors and kernels."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

ReportProgress = Callable[[str, float], None]
"""(stage, fraction 0..1) of a load."""


class LoadSpec(msgspec.Struct, frozen=True):
    """What to load and how. `files` are all parts in order; `config` is None for GGUF."""

    format: str  # "gguf" | "safetensors"
    files: tuple[Path, ...]
    max_context: int
    config: Path | None = None
    quant: str | None = None
    rank: int = 0
    world_size: int = 1
    #: The vision tower beside a GGUF model (an mmproj file).
    projector: Path | None = None


class Collectives(Protocol):
    """What the ranks of a tensor-parallel model do together: all of them, in the same order, with equal shapes.

    Tensors are contiguous and on the rank's device. On CUDA both run on the current stream and wait for nothing on
    the host, so that a step with them can be captured as a graph.
    """

    rank: int
    world_size: int

    def begin(self) -> None:
        """Before a recorded step, whose replay calls nothing here: wait for whatever the first call would wait for."""

    def all_reduce(self, tensor: "torch.Tensor") -> None:
        """`tensor` becomes the sum over the ranks, in place; every rank gets the same bits."""

    def gather_columns(self, tensor: "torch.Tensor") -> "torch.Tensor | None":
        """`tensor` [n, width], equally wide on every rank -> [n, world_size * width] on rank 0, None on the others."""


class ModelMemory(msgspec.Struct, frozen=True):
    """Bytes that a resident model holds on its device."""

    weights: int
    kv_per_token: int
    state: int
    workspace: int


class PixelScale(msgspec.Struct, frozen=True):
    """A pixel value v (0..255) of channel c enters a vision tower as (v * rescale - mean[c]) / std[c]."""

    rescale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


Span = tuple[int, int, int]
"""Where an image stands in a sequence: (image, offset of its first place, places)."""


class PrefixBlocks(Protocol):
    """What a model keeps of prefixes: immutable blocks under numbers above 0 that its user chooses and never reuses.

    Each method raises ValueError, with nothing changed, for what does not fit what is held.
    """

    def save_rows(self, sequence: int, block: int, begin: int, end: int) -> int:
        """Keep a copy of the KV rows of positions begin..end-1 of `sequence`; returns bytes."""

    def save_state(self, sequence: int, block: int) -> int:
        """Keep a copy of the recurrent state of `sequence` at its present length; returns bytes."""

    def restore_prefix(self, sequence: int, keep: int, rows: Sequence[int], state: int) -> int:
        """Make `sequence` hold its own first `keep` tokens, then those of the blocks `rows`; returns the length.

        `state` is the block of the recurrent state at that length, 0 for a model without one.
        """

    def drop_blocks(self, blocks: Sequence[int]) -> int:
        """Forget blocks, unknown ones passed over; returns bytes."""


class DeviceModel(PrefixBlocks, Protocol):
    """A resident model. Not thread safe: one device loop drives it."""

    #: Length of a logits row (embedding rows, padding included).
    vocab_size: int
    #: Largest position + 1 that the KV cache was built for.
    context_length: int
    memory: ModelMemory
    #: One line for the `construction complete` log event.
    summary: str

    def forward(
        self,
        sequence: int,
        tokens: npt.NDArray[np.int32],
        position: int,
        logits: npt.NDArray[np.float32] | None,
    ) -> None:
        """Run `tokens` [n] of `sequence` at `position` (= tokens already held).

        `logits` [vocab_size] float32 receives the last position's row; None skips the head.
        Raises ValueError for an empty input, an id outside the vocabulary, a position that is not the
        sequence's length, or one beyond `context_length`.
        """

    def clear(self, sequence: int, keep: int = 0) -> int:
        """Cut `sequence` back to its first `keep` tokens; returns how many are held (0 if it cannot cut there)."""

    def close(self) -> None:
        """Give all device memory back."""


@runtime_checkable
class SeeingModel(DeviceModel, Protocol):
    """A DeviceModel that also takes images."""

    def encode_image(
        self,
        sequence: int,
        image: int,
        patches: npt.NDArray[np.uint8],
        grid: tuple[int, int, int],
        scale: PixelScale,
    ) -> int:
        """Run the vision tower on one still image; its rows stay here as `image` until `sequence` has passed over
        them, or is cut back or put together anew. Returns how many places they fill.

        `patches` uint8 [h * w, 3 * patch * patch] of `grid` (1, h, w), in blocks of merge x merge. Raises ValueError
        when they do not fit each other or the tower.
        """

    def forward_with_images(
        self,
        sequence: int,
        tokens: npt.NDArray[np.int32],
        position: int,
        logits: npt.NDArray[np.float32] | None,
        spans: tuple[Span, ...],
        positions: npt.NDArray[np.int32],
        rope_delta: int,
    ) -> None:
        """`forward`, with the embeddings at `spans` taken from encoded images (a span may begin before or end after
        these tokens) and rotary `positions` [3, n] (time, height, width).

        `rope_delta`: the next token's rotary position minus the length held after these tokens; kept for `forward`.
        Raises ValueError also for an image that is not there or whose span has another length.
        """
