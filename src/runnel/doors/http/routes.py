"""Which operation an address means: a tree of path segments, built once.

Rule 1: a name in an address may contain anything, if it is percent-encoded: the path is split first, decoded then.
Rule 2: a fixed segment wins over a parameter.
"""

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote

from runnel.doors.http.operation import Operation
from runnel.doors.http.problems import InvalidInput

ANY = "{}"


class Found(NamedTuple):
    methods: dict[str, Operation]
    values: list[str]  # of the parameters in the path, in order


class _Node:
    __slots__ = ("below", "methods")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.methods: dict[str, Operation] = {}


class Routes:
    """All addresses."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._root = _Node()
        self._fixed: dict[bytes, dict[str, Operation]] = {}
        for operation in operations:
            self._add(operation)

    def _add(self, operation: Operation) -> None:
        node = self._root
        for segment in operation.segments:
            node = node.below.setdefault(ANY if segment.startswith("{") else segment, _Node())
        if operation.method in node.methods:
            raise TypeError(f"{operation.method} {operation.path} is served twice")
        node.methods[operation.method] = operation
        if ANY not in (ANY if segment.startswith("{") else segment for segment in operation.segments):
            self._fixed[operation.path.encode()] = node.methods

    def find(self, raw_path: bytes) -> Found | None:
        """The operations at an address, and what its parameters are."""
        if (fixed := self._fixed.get(raw_path)) is not None:
            return Found(fixed, [])
        node, values = self._root, []
        for part in raw_path.decode("ascii", "replace").split("/")[1:]:
            below = node.below.get(part)
            if below is None:
                below = node.below.get(ANY)
                values.append(_unquoted(part) if "%" in part else part)
            if below is None:
                return None
            node = below
        return Found(node.methods, values) if node.methods else None


def _unquoted(part: str) -> str:
    """Decode a part of a path strictly: bytes that are no UTF-8 must not become another name."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the address can't be read: {part[:40]!r} is not UTF-8 ({error})") from None
