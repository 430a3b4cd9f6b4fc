"""How much of the host's memory a resident model's prefix cache may take; made when the model has been loaded."""

import psutil

from neuron.actors.device.jobs import Loaded
from neuron.actors.prefix.cache import PrefixCache
from neuron.actors.settings import Settings

MIB = 1 << 20
#: Of the memory that is available when the model has been loaded.
_SHARE = 0.25


def prefix_cache(
    settings: Settings, loaded: Loaded, turn_ends: frozenset[int], *, ranks: int = 1
) -> PrefixCache | None:
    """None when the configuration switches it off. Each of `ranks` processes keeps its own part of everything."""
    wanted = settings.prefix_cache
    if not wanted.enabled or wanted.budget_mb <= 0:
        return None
    return PrefixCache(
        settings=wanted,
        budget=min(wanted.budget_mb * MIB, int(psutil.virtual_memory().available * _SHARE)),
        chunk=settings.limits.prefill_chunk_tokens,
        turn_ends=turn_ends,
        kv_bytes=loaded.kv_bytes_per_token * ranks,
        state_bytes=loaded.state_bytes * ranks,
    )
