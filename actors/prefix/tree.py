"""PrefixTree: which prefixes a device process keeps, by their token ids, and which to give up first. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Node:
    """One chunk of a prompt after its parent's. `rows` and `state` number blocks of the device process, 0 is none."""

    parent: "Node | None"
    key: bytes
    end: int
    rows: int = 0
    rows_bytes: int = 0
    state: int = 0
    state_bytes: int = 0
    #: When it was last made or gone back to; larger is later.
    used: int = 0
    children: dict[bytes, "Node"] = field(default_factory=dict)

    @property
    def begin(self) -> int:
        return self.parent.end if self.parent is not None else 0


class PrefixTree:
    """`nbytes` counts what the device process said each block takes."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._root = Node(None, b"", 0)
        self._nodes: set[Node] = set()
        self._clock = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def path(self, keys: Iterable[bytes]) -> list[Node]:
        """The nodes along `keys`, as far as they are kept."""
        node, found = self._root, []
        for key in keys:
            child = node.children.get(key)
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def add(self, parent: Node | None, key: bytes, end: int, rows: int, nbytes: int) -> Node:
        """A chunk whose rows are kept now, after `parent` (None: at the beginning)."""
        above = parent or self._root
        assert key not in above.children
        node = above.children[key] = Node(above, key, end, rows, nbytes)
        self._nodes.add(node)
        self.nbytes += nbytes
        self.touch([node])
        return node

    def add_state(self, node: Node, state: int, nbytes: int) -> None:
        assert node.state == 0
        node.state, node.state_bytes = state, nbytes
        self.nbytes += nbytes
        self.touch([node])

    def touch(self, nodes: Iterable[Node]) -> None:
        self._clock += 1
        for node in nodes:
            node.used = self._clock

    def remove(self, node: Node) -> list[int]:
        """Give up a node and all that follow it; returns the numbers of their blocks."""
        dropped: list[int] = []
        for below in list(_below(node)):
            dropped += [number for number in (below.rows, below.state) if number]
            self.nbytes -= below.rows_bytes + below.state_bytes
            self._nodes.discard(below)
        if node.parent is not None:
            node.parent.children.pop(node.key, None)
        return dropped

    def evict(self, spared: set[Node]) -> list[int]:
        """Give up what was used longest ago and can go alone; returns its blocks, none when there is nothing.

        Without states that is a last chunk. With them it is a last chunk that no state makes use of, else a state
        (with its chunk, when that is a last one). The chunks of `spared` stay, though not their states.
        """
        victim = min(self._candidates(spared), key=lambda node: (node.state > 0, node.used), default=None)
        if victim is None:
            return []
        if not victim.children and victim not in spared:
            return self.remove(victim)
        number, victim.state = victim.state, 0
        self.nbytes -= victim.state_bytes
        victim.state_bytes = 0
        return [number]

    def _candidates(self, spared: set[Node]) -> Iterator[Node]:
        for node in self._nodes:
            if node.state or (not node.children and node not in spared):
                yield node


def _below(node: Node) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += current.children.values()
