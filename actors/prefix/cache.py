"""PrefixCache: what one resident model keeps of earlier prompts, and the rules by which it is kept.

Only the daemon knows the token ids, so it decides alone; the device process (each rank of a group alike) stores and
copies numbered blocks. It is made with the resident model and goes with it: nothing outlives a poisoning or an unload.
"""

from dataclasses import dataclass, field

import numpy as np

from neuron.actors.daemon import PrefixCacheFigures
from neuron.actors.prefix.cuts import Ids, checkpoints, cuts
from neuron.actors.prefix.recent import Difference, RecentPrompts
from neuron.actors.prefix.tree import Node, PrefixTree
from neuron.actors.settings import PrefixCacheSettings

#: More chunks than this are not kept, however small they are.
_MAX_NODES = 16384
_ID_BYTES = 4


@dataclass(slots=True)
class Walk:
    """One prompt on its way through the cache.

    `start`: tokens that need no computing; the first `keep` of them are still in the sequence, the others are in the
    nodes `rows`, one after the other, and the recurrent state at `start` is in `state`.
    """

    prompt: Ids
    cuts: list[int]
    keys: list[bytes]
    start: int
    keep: int
    rows: list[Node]
    state: Node | None
    #: Nodes of this prompt from its beginning, without a gap.
    path: list[Node]
    wanted_states: set[int]
    difference: Difference | None
    #: False once something could not be kept: a later chunk would be of no use.
    keeps: bool = True


@dataclass(slots=True)
class Counters:
    hits: int = 0
    misses: int = 0
    reused_tokens: int = 0
    evictions: int = 0
    refused: int = 0
    failed_restores: int = 0
    restore_ms: float = 0.0


@dataclass(slots=True)
class PrefixCache:
    """`turn_ends`: ids that end a turn. `kv_bytes` per token and `state_bytes` are the device process's figures."""

    settings: PrefixCacheSettings
    #: Bytes of blocks at most.
    budget: int
    chunk: int
    turn_ends: frozenset[int]
    kv_bytes: int
    state_bytes: int
    counters: Counters = field(default_factory=Counters)
    _recent: RecentPrompts = field(default_factory=RecentPrompts)
    #: Chunks that the sequence holds from its beginning, whatever came after them.
    _live: list[bytes] = field(default_factory=list)
    _spared: set[Node] = field(default_factory=set)
    _last_block: int = 0
    tree: PrefixTree = field(default_factory=PrefixTree)

    @property
    def needs_state(self) -> bool:
        """Whether the model has a recurrent state, which cannot be cut back."""
        return self.state_bytes > 0

    def next_block(self) -> int:
        self._last_block += 1
        return self._last_block

    # -- going back ----------------------------------------------------------------------------

    def open(self, prompt: list[int] | Ids) -> Walk:
        """The longest beginning of `prompt` that is kept, its last token never among it.

        Equal ids must mean equal rows: places of images carry what tells the images apart (PromptImages.identity).
        """
        ids = np.asarray(prompt, dtype="<i4")
        places = cuts(ids, self.turn_ends, self.chunk, self.settings.spacing_tokens)
        keys = [ids[a:b].tobytes() for a, b in zip([0, *places], places, strict=False)]
        path = self.tree.path(keys)
        live = _common(self._live, keys)
        state: Node | None = None
        if self.needs_state:
            state = next((node for node in reversed(path) if node.state), None)
            start = state.end if state is not None else 0
            if state is not None:
                self.tree.touch([state, *[node for node in path if node.state][:1]])
        else:
            start = max(_place(places, live), path[-1].end if path else 0)
            self.tree.touch(path)
        keep = min(_place(places, live), start)
        return Walk(
            prompt=ids,
            cuts=[place for place in places if place > start],
            keys=keys,
            start=start,
            keep=keep,
            rows=[node for node in path if keep < node.end <= start],
            state=state,
            path=path,
            wanted_states=checkpoints(places, ids, self.turn_ends, self.settings.every_tokens),
            difference=self._recent.compare(ids, start),
        )

    def begun(self, walk: Walk, restore_ms: float) -> None:
        """The sequence holds the first `start` tokens of the walk now."""
        counters = self.counters
        counters.hits += walk.start > 0
        counters.misses += walk.start == 0
        counters.reused_tokens += walk.start
        if walk.start:
            counters.restore_ms += restore_ms
        self._live = [key for key, end in zip(walk.keys, _ends(walk), strict=True) if end <= walk.start]
        self._spared = set(walk.path)

    def abandon(self, walk: Walk) -> list[int]:
        """Its restore failed: give up all that it wanted to use, begin anew. Returns blocks to be dropped."""
        self.counters.failed_restores += 1
        first = next((node for node in (*walk.rows, walk.state) if node is not None), None)
        dropped = self.tree.remove(first) if first is not None else []
        self.lost()
        walk.cuts = cuts(walk.prompt, self.turn_ends, self.chunk, self.settings.spacing_tokens)
        walk.start = walk.keep = 0
        walk.rows, walk.state = [], None
        walk.path = self.tree.path(walk.keys)
        return dropped

    # -- keeping -------------------------------------------------------------------------------

    def computed(self, walk: Walk) -> None:
        """The sequence holds the next chunk of the walk too."""
        self._live.append(walk.keys[len(self._live)])

    def missing(self, walk: Walk) -> tuple[bytes, int, int] | None:
        """Key, begin and end of the first chunk that the sequence holds and no block does."""
        index = len(walk.path)
        if index >= len(self._live):
            return None
        begin = walk.path[-1].end if walk.path else 0
        key = walk.keys[index]
        return key, begin, begin + len(key) // _ID_BYTES

    def node_at(self, walk: Walk, end: int) -> Node | None:
        return next((node for node in reversed(walk.path) if node.end == end), None)

    def room_for(self, nbytes: int) -> tuple[list[int], bool]:
        """Blocks to be dropped, and whether `nbytes` more fit then."""
        dropped: list[int] = []
        while self.tree.nbytes + nbytes > self.budget or len(self.tree) >= _MAX_NODES:
            victims = self.tree.evict(self._spared) if nbytes <= self.budget else []
            if not victims:
                self.counters.refused += 1
                return dropped, False
            self.counters.evictions += 1
            dropped += victims
        return dropped, True

    def kept_rows(self, walk: Walk, key: bytes, end: int, block: int, nbytes: int) -> Node:
        node = self.tree.add(walk.path[-1] if walk.path else None, key, end, block, nbytes)
        walk.path.append(node)
        self._spared.add(node)
        return node

    def closed(self) -> None:
        """The prompt is computed or given up: nothing is spared any more."""
        self._spared = set()

    def lost(self) -> None:
        """The sequence may hold anything; what is kept in blocks is untouched."""
        self._live = []

    # -- views ---------------------------------------------------------------------------------

    def figures(self) -> PrefixCacheFigures:
        counters = self.counters
        return PrefixCacheFigures(
            hits=counters.hits,
            misses=counters.misses,
            reused_tokens=counters.reused_tokens,
            evictions=counters.evictions,
            refused=counters.refused,
            failed_restores=counters.failed_restores,
            restore_ms=round(counters.restore_ms, 3),
            bytes_used=self.tree.nbytes,
            bytes_budget=self.budget,
            entries=len(self.tree),
        )


def _common(one: list[bytes], other: list[bytes]) -> int:
    for index, (first, second) in enumerate(zip(one, other, strict=False)):
        if first != second:
            return index
    return min(len(one), len(other))


def _place(places: list[int], count: int) -> int:
    return places[count - 1] if count else 0


def _ends(walk: Walk) -> list[int]:
    lengths = np.cumsum([len(key) // _ID_BYTES for key in walk.keys])
    return [int(length) for length in lengths]
