"""The tree against a plain reading of the law, on random multis."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.cluster.store import PERSISTENT, Check, Conflict, Create, Delete, Node, Op, Set, parent_of
from runnel.cluster.tree import ROOT, Tree

MINE = 5
ALL_PATHS = ["/a", "/b", "/a/x", "/a/y", "/a/x/deep", "/b/z"]
PATHS = st.sampled_from(ALL_PATHS)
VALUES = st.sampled_from([b"1", b"2"])
VERSIONS = st.integers(0, 2)
OPS: st.SearchStrategy[Op] = st.one_of(
    st.builds(Create, PATHS, VALUES, st.booleans()),
    st.builds(Set, PATHS, VALUES, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)
MULTIS = st.lists(st.lists(OPS, min_size=1, max_size=6), max_size=20)


def done(nodes: dict[str, Node], op: Op) -> dict[str, Node] | None:
    """The nodes after one operation, or None if the law forbids it; as slow and plain as can be."""
    if isinstance(op, Create):
        parent = nodes.get(parent_of(op.path))
        if parent is None or parent.session != PERSISTENT or op.path in nodes:
            return None
        return {**nodes, op.path: Node(op.value, 0, MINE if op.ephemeral else PERSISTENT)}
    node = nodes.get(op.path)
    if node is None or node.version != op.version:
        return None
    if isinstance(op, Set):
        return {**nodes, op.path: Node(op.value, node.version + 1, node.session)}
    if isinstance(op, Check):
        return nodes
    if any(parent_of(path) == op.path for path in nodes):
        return None
    return {path: other for path, other in nodes.items() if path != op.path}


def outcome(nodes: dict[str, Node], ops: list[Op]) -> int | dict[str, Node]:
    """The nodes after a multi, or the place of the operation that the law forbids."""
    for index, op in enumerate(ops):
        after = done(nodes, op)
        if after is None:
            return index
        nodes = after
    return nodes


@settings(max_examples=150)
@given(MULTIS)
def test_a_multi_does_all_or_nothing_as_the_law_says(multis: list[list[Op]]) -> None:
    tree, nodes = Tree({}), {"/": ROOT}
    for ops in multis:
        expected = outcome(nodes, ops)
        if isinstance(expected, int):
            with pytest.raises(Conflict) as conflict:
                tree.plan(ops, MINE)
            assert (conflict.value.index, conflict.value.op) == (expected, ops[expected])
        else:
            touched = tree.apply(tree.plan(ops, MINE))
            assert touched >= {path for path in {*nodes, *expected} if nodes.get(path) != expected.get(path)}
            nodes = expected
        for path in ("/", *ALL_PATHS):
            assert tree.get(path) == nodes.get(path)
            names = [each.rpartition("/")[2] for each in nodes if each != "/" and parent_of(each) == path]
            assert tree.children(path) == sorted(names)


@settings(max_examples=50)
@given(MULTIS)
def test_the_end_of_a_session_takes_its_nodes_and_no_others(multis: list[list[Op]]) -> None:
    tree = Tree({})
    for ops in multis:
        try:
            tree.apply(tree.plan(ops, MINE))
        except Conflict:
            continue
    kept = {path for path in ALL_PATHS if (node := tree.get(path)) and node.session == PERSISTENT}
    tree.apply(tree.expiry(MINE))
    assert {path for path in ALL_PATHS if tree.get(path)} == kept
    assert tree.orphans() == []


def test_a_node_without_its_parent_is_found() -> None:
    assert Tree({"/a/b": Node(b"", 0)}).orphans() == ["/a/b"]
