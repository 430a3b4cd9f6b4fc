"""Whether a model's heads and widths can be shared out over the ranks of a tensor-parallel group."""

from neuron.actors.errors import IndivisibleHeads
from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.formats.sharding import fitting_ranks, indivisible


def check_sharding(config: ModelConfig, tensor_parallel: int | None, model_id: str) -> None:
    """Raise IndivisibleHeads naming what does not divide by `tensor_parallel`, with a size that does."""
    ranks = tensor_parallel or 1
    problem = indivisible(config, ranks)
    if problem is None:
        return
    label, count = problem
    raise IndivisibleHeads(
        f"{count} {label} cannot be shared out over {ranks} devices.",
        model_id=model_id,
        suggestion=f"tensor_parallel: {fitting_ranks(config, ranks)}",
        tp_size=ranks,
    )
