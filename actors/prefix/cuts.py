"""Where a prompt is cut into prefill chunks. Pure: a cut depends on the tokens before it alone.

So two prompts with a common beginning are computed in the same pieces as far as it goes, and a prompt that goes on
from a kept prefix computes exactly what it would have computed without: the same numbers, to the last bit.
"""

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]


def cuts(prompt: Ids, turn_ends: frozenset[int], chunk: int, spacing: int) -> list[int]:
    """Cuts of int32 `prompt` [n], ascending, each between 0 and n.

    After `chunk` tokens at most; earlier after a token that ends a turn, once `spacing` tokens are past. Text after
    such a token is tokenised the same whatever comes before it, so conversations part exactly there.
    """
    ends = np.flatnonzero(np.isin(prompt, list(turn_ends))) + 1
    found: list[int] = []
    place = 0
    while True:
        first = int(np.searchsorted(ends, place + max(1, min(spacing, chunk))))
        place = min(place + chunk, int(ends[first]) if first < len(ends) else place + chunk)
        if place >= len(prompt):
            return found
        found.append(place)


def grid(length: int, chunk: int) -> list[int]:
    """Cuts after every `chunk` tokens, for models whose prefixes are not kept."""
    return list(range(chunk, length, chunk))


def checkpoints(places: list[int], prompt: Ids, turn_ends: frozenset[int], every: int) -> set[int]:
    """Those cuts at which a recurrent state is worth keeping.

    The end of the first turn (system and tools), the last two ends of turns (the prompt's volatile tail and its last
    turn come after them), the last cut, and one every `every` tokens.
    """
    chosen: set[int] = set(places[-1:])
    ends = [place for place in places if int(prompt[place - 1]) in turn_ends]
    chosen.update(ends[:1], ends[-2:])
    last = 0
    for place in places:
        if place - last >= every or place in chosen:
            chosen.add(place)
            last = place
    return chosen
