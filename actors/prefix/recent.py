"""RecentPrompts: finds out that a long prefix was lost, and at which position the prompt began to differ."""

from collections import deque

import msgspec
import numpy as np

from neuron.actors.prefix.cuts import Ids

_KEPT = 4
#: Prompts shorter than this are cheap: nothing is said of them.
_LONG = 512
#: The rest of the earlier prompt is looked for in the new one by so many pieces of so many tokens.
_PIECES, _PIECE = 24, 8


class Difference(msgspec.Struct, frozen=True):
    """The first position at which a prompt differs from an earlier one, and the ids there (None: its end)."""

    position: int
    earlier_length: int
    was: int | None
    now: int | None


class RecentPrompts:
    def __init__(self) -> None:
        self._prompts: deque[Ids] = deque(maxlen=_KEPT)

    def compare(self, prompt: Ids, reused: int) -> Difference | None:
        """What cost the reuse of `prompt`; None when nothing long was lost. Remembers the prompt."""
        found = None
        if len(prompt) >= _LONG and reused < len(prompt) // 2:
            same = [earlier for earlier in self._prompts if _is_same_text(earlier, prompt)]
            if same:
                found = max((_difference(earlier, prompt) for earlier in same), key=lambda one: one.position)
        self._prompts.append(prompt)
        return found


def common_length(one: Ids, other: Ids) -> int:
    """How many tokens two prompts have in common from their beginning."""
    length = min(len(one), len(other))
    unlike = np.flatnonzero(one[:length] != other[:length])
    return int(unlike[0]) if len(unlike) else length


def _difference(earlier: Ids, prompt: Ids) -> Difference:
    place = common_length(earlier, prompt)
    was, now = (int(ids[place]) if place < len(ids) else None for ids in (earlier, prompt))
    return Difference(place, len(earlier), was, now)


def _is_same_text(earlier: Ids, prompt: Ids) -> bool:
    """Whether most of what `earlier` holds after the difference is somewhere in `prompt` too."""
    rest = earlier[common_length(earlier, prompt) :]
    if len(rest) < _LONG // 2:
        return False
    text = prompt.tobytes()
    places = np.linspace(0, len(rest) - _PIECE, _PIECES).astype(int)
    found = sum(text.find(rest[place : place + _PIECE].tobytes()) >= 0 for place in places)
    return found * 2 > _PIECES
