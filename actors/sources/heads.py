"""Whether a model's heads and widths can be shared out over the ranks of a tensor-parallel group."""

from neuron.actors.errors import IndivisibleHeads
from neuron.kernels.formats.model_config import ModelConfig


def check_sharding(config: ModelConfig, tensor_parallel: int | None, model_id: str) -> None:
    """Raise IndivisibleHeads naming what does not divide by `tensor_parallel`, with a size that does."""
    ranks = tensor_parallel or 1
    widths = _widths(config)
    for label, count in widths.items():
        if count % ranks:
            fitting = [n for n in range(ranks - 1, 0, -1) if not any(width % n for width in widths.values())]
            raise IndivisibleHeads(
                f"{count} {label} cannot be shared out over {ranks} devices.",
                model_id=model_id,
                suggestion=f"tensor_parallel: {fitting[0]}",
                tp_size=ranks,
            )


def _widths(config: ModelConfig) -> dict[str, int]:
    widths = {
        "query heads": config.num_heads,
        "key-value heads": config.num_kv_heads,
        "intermediate rows": config.intermediate_size,
    }
    if config.linear is not None:
        widths |= {
            "linear key heads": config.linear.key_heads,
            "linear value heads": config.linear.value_heads,
        }
    return widths
