"""The tree of nodes in memory: the meaning of a multi, without the question of where it is kept.

`plan` decides and changes nothing; `apply` makes a plan so. Between the two, a body makes the plan durable.
"""

from collections.abc import Mapping, Sequence
from typing import NewType

from runnel.cluster.store import PERSISTENT, Check, Conflict, Create, Delete, Node, Op, Reason, Set, parent_of

Plan = NewType("Plan", Mapping[str, Node | None])  # path -> the node as it will be; None: gone
ROOT = Node(b"", 0)


class Tree:
    """Every node, and for each its children's names."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes: dict[str, Node] = {"/": ROOT}
        self._children: dict[str, set[str]] = {}
        self.apply(Plan(nodes))

    def get(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def children(self, path: str) -> list[str]:
        return sorted(self._children.get(path, ()))

    def orphans(self) -> list[str]:
        """Nodes whose parent is missing: never in a tree that grew by multis."""
        return sorted(path for path in self._nodes if parent_of(path) not in self._nodes)

    def plan(self, ops: Sequence[Op], session: int) -> Plan:
        """What a multi comes to, or Conflict at the first operation that does not fit."""
        draft = _Draft(self._nodes, self._children)
        for index, op in enumerate(ops):
            reason = draft.refuse(op)
            if reason is not None:
                raise Conflict(index, op, reason)
            draft.do(op, session)
        return Plan(draft.changes)

    def expiry(self, session: int) -> Plan:
        """The end of a session, as a plan."""
        return Plan({path: None for path, node in self._nodes.items() if node.session == session})

    def apply(self, plan: Plan) -> set[str]:
        """Make it so; returns the paths whose node or list of children changed."""
        touched: set[str] = set()
        for path, node in plan.items():
            parent, _, name = path.rpartition("/")
            was = self._nodes.get(path)
            if node is not None:
                self._nodes[path] = node
                self._children.setdefault(parent or "/", set()).add(name)
            elif was is not None:
                del self._nodes[path]
                self._children[parent or "/"].discard(name)
            touched.add(path)
            if (was is None) != (node is None):
                touched.add(parent or "/")
        return touched


class _Draft:
    """A multi half thought through: the changes so far lie over the tree."""

    def __init__(self, nodes: Mapping[str, Node], children: Mapping[str, set[str]]) -> None:
        self._nodes = nodes
        self._children = children
        self._grown: dict[str, int] = {}  # how many children a node gained or lost
        self.changes: dict[str, Node | None] = {}

    def _get(self, path: str) -> Node | None:
        return self.changes[path] if path in self.changes else self._nodes.get(path)

    def _count(self, path: str) -> int:
        return len(self._children.get(path, ())) + self._grown.get(path, 0)

    def refuse(self, op: Op) -> Reason | None:
        """Why this operation does not fit, or None if it does."""
        node = self._get(op.path)
        if isinstance(op, Create):
            parent = self._get(parent_of(op.path))
            if parent is None:
                return Reason.MISSING
            if node is not None:
                return Reason.EXISTS
            return Reason.EPHEMERAL if parent.session != PERSISTENT else None
        if node is None:
            return Reason.MISSING
        if node.version != op.version:
            return Reason.VERSION
        return Reason.NOT_EMPTY if isinstance(op, Delete) and self._count(op.path) else None

    def do(self, op: Op, session: int) -> None:
        match op:
            case Create(path, value, ephemeral):
                self.changes[path] = Node(value, 0, session if ephemeral else PERSISTENT)
                self._grow(path, 1)
            case Set(path, value, version):
                node = self._get(path)
                self.changes[path] = Node(value, version + 1, node.session if node else PERSISTENT)
            case Delete(path):
                self.changes[path] = None
                self._grow(path, -1)
            case Check():
                pass

    def _grow(self, path: str, by: int) -> None:
        parent = parent_of(path)
        self._grown[parent] = self._grown.get(parent, 0) + by
