"""check_forward: what every engine refuses of a forward call, before anything has changed."""

import numpy as np
import numpy.typing as npt


def check_forward(
    tokens: npt.NDArray[np.int32],
    position: int,
    logits: npt.NDArray[np.float32] | None,
    rope_positions: npt.NDArray[np.int32] | None,
    *,
    held: int,
    context: int,
    vocab: int,
) -> None:
    """Raises ValueError as DeviceModel.forward documents. `held`: tokens of the sequence."""
    if tokens.ndim != 1 or tokens.size == 0:
        raise ValueError("tokens must be a row of at least one id")
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocab:
        raise ValueError(f"a token id is outside the vocabulary of {vocab}")
    if position != held:
        raise ValueError(f"position {position} is not the sequence's length {held}")
    if position + tokens.size > context:
        raise ValueError(f"{position + tokens.size} tokens are beyond the context of {context}")
    if logits is not None and (logits.shape != (vocab,) or logits.dtype != np.float32 or not logits.flags.c_contiguous):
        raise ValueError(f"logits must be contiguous float32 [{vocab}]")
    if rope_positions is not None and rope_positions.shape != (3, len(tokens)):
        raise ValueError("rotary positions must be [3, tokens]")
