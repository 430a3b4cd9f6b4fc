"""The tree of kept prefixes: the longest path wins, branches stay, what was used longest ago goes first."""

from neuron.actors.prefix.tree import Node, PrefixTree


def _chain(tree: PrefixTree, text: str, size: int = 10, first: int = 1) -> list[Node]:
    """A chunk for each letter; rows numbered from `first`."""
    parent: Node | None = None
    nodes = []
    for index, letter in enumerate(text):
        known = tree.path([one.encode() for one in text[: index + 1]])
        if len(known) > index:
            parent = known[-1]
        else:
            parent = tree.add(parent, letter.encode(), 4 * (index + 1), first + index, size)
        nodes.append(parent)
    return nodes


def _held(tree: PrefixTree, text: str) -> int:
    return len(tree.path([one.encode() for one in text]))


def test_branches_share_their_beginning() -> None:
    tree = PrefixTree()
    _chain(tree, "abc")
    _chain(tree, "abx", first=10)
    assert len(tree) == 4
    assert tree.nbytes == 40
    assert [_held(tree, text) for text in ("abc", "abx", "aby", "b")] == [3, 3, 2, 0]


def test_the_branch_used_longest_ago_goes_from_its_end() -> None:
    tree = PrefixTree()
    _chain(tree, "abc")
    _chain(tree, "axy", first=10)
    tree.touch(tree.path([b"a", b"b", b"c"]))
    assert tree.evict(set()) == [12]
    assert tree.evict(set()) == [11]
    assert tree.evict(set()) == [3]
    assert [_held(tree, text) for text in ("abc", "axy")] == [2, 1]
    assert tree.nbytes == 20


def test_spared_chunks_stay() -> None:
    tree = PrefixTree()
    nodes = _chain(tree, "ab")
    assert tree.evict(set(nodes)) == []
    assert tree.nbytes == 20


def test_states_go_before_chunks_that_others_need_and_after_chunks_that_none_needs() -> None:
    tree = PrefixTree()
    nodes = _chain(tree, "abcd")
    tree.add_state(nodes[1], 21, 100)
    tree.add_state(nodes[2], 22, 100)
    assert tree.nbytes == 240
    assert tree.evict(set()) == [4], "a last chunk without a state is of no use"
    assert tree.evict(set()) == [21], "the older state; its chunk is on the way to the other one"
    assert sorted(tree.evict(set())) == [3, 22], "the last state with its chunk"
    assert tree.evict(set()) == [2]
    assert tree.evict(set()) == [1]
    assert (tree.nbytes, len(tree)) == (0, 0)


def test_a_spared_chunk_may_lose_its_state() -> None:
    tree = PrefixTree()
    nodes = _chain(tree, "ab")
    tree.add_state(nodes[1], 21, 100)
    assert tree.evict(set(nodes)) == [21]
    assert _held(tree, "ab") == 2


def test_removing_takes_all_that_follows() -> None:
    tree = PrefixTree()
    nodes = _chain(tree, "abc")
    _chain(tree, "abx", first=10)
    assert sorted(tree.remove(nodes[1])) == [2, 3, 12]
    assert _held(tree, "abc") == 1
    assert tree.nbytes == 10
