"""Regular expressions over names (of topics, of transactional ids), matched in linear time.

A subscription's expression runs on the broker, for every topic, and comes from anybody. Python's `re` backtracks: one
hostile pattern stalls it for ever. So an expression is compiled here to a finite table (a deterministic automaton over
the characters that names can have), and matching is one look-up a character. Compiling is bounded too: an
expression whose table would get too large is refused when the member subscribes, never later.

An expression must match the whole name, as in Kafka.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from runnel.groups.regex_syntax import ALPHABET, OTHER, Chars, Choice, Edge, Node, Parser, Repeat, Sequence
from runnel.model.errors import InvalidRegularExpression, as_value

PATTERN_CHARS_MAX = 2_000
NODES_MAX = 2_000  # of the automaton before it is made deterministic; a{1000}{1000} must not fill the memory
BUILT_MAX = 20_000  # parts of the tree that are built, also those without a node: (((){200}){200}){200} must end
TABLE_STATES_MAX = 1_000
WORK_MAX = 100_000  # node visits while compiling: a tenth of a second at most


# --- from the tree to nodes that lead to each other
@dataclass(slots=True)
class _Automaton:
    """Nodes are numbers. `free` lists what can be reached from a node without a character."""

    reads: list[frozenset[str] | None] = field(default_factory=list)  # the characters that lead to `then`
    then: list[int] = field(default_factory=list)
    free: list[list[int]] = field(default_factory=list)
    edges: list[bool | None] = field(default_factory=list)  # passable only at the beginning (False) or end (True)
    built: int = 0

    def node(self, reads: frozenset[str] | None = None, then: int = -1, edge: bool | None = None) -> int:
        if len(self.reads) >= NODES_MAX:
            raise _too_large()
        self.reads.append(reads)
        self.then.append(then)
        self.free.append([])
        self.edges.append(edge)
        return len(self.reads) - 1

    def build(self, tree: Node, end: int) -> int:
        """Nodes for a tree that goes on at `end`; returns where it begins. Built from the back."""
        self.built += 1
        if self.built > BUILT_MAX:
            raise _too_large()
        match tree:
            case Chars(allowed):
                return self.node(allowed, end)
            case Edge(at_end):
                start = self.node(edge=at_end)
                self.free[start].append(end)
                return start
            case Sequence(parts):
                for part in reversed(parts):
                    end = self.build(part, end)
                return end
            case Choice(options):
                start = self.node()
                self.free[start] += [self.build(option, end) for option in options]
                return start
        return self.repeat(tree, end)

    def repeat(self, tree: Repeat, end: int) -> int:
        if tree.high is None:
            loop = self.node()
            self.free[loop] += [self.build(tree.body, loop), end]
            end = loop
        else:
            last = end
            for _ in range(tree.high - tree.low):
                start = self.node()
                self.free[start] += [self.build(tree.body, end), last]
                end = start
        for _ in range(tree.low):
            end = self.build(tree.body, end)
        return end

    def closure(self, nodes: Iterable[int], *, at_start: bool = False, at_end: bool = False) -> frozenset[int]:
        found = set(nodes)
        stack = list(found)
        while stack:
            node = stack.pop()
            edge = self.edges[node]
            if edge is None or (at_end if edge else at_start):
                fresh = [each for each in self.free[node] if each not in found]
                found.update(fresh)
                stack += fresh
        return frozenset(found)


def _too_large() -> InvalidRegularExpression:
    return InvalidRegularExpression("regular expression is too large: use fewer or smaller repetitions")


class Pattern:
    """A compiled expression. Names are never empty."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_CHARS_MAX:
            raise InvalidRegularExpression(f"regular expression is longer than {PATTERN_CHARS_MAX} characters")
        automaton = _Automaton()
        accept = automaton.node()
        start = automaton.build(Parser(pattern).parse(), accept)
        self._classes, columns = _classes(automaton)
        self._table: list[list[int]] = []  # state -> class of character -> state; -1: no way to match any more
        self._accepting: list[bool] = []
        self._determine(automaton, start, accept, columns, pattern)

    def matches(self, name: str) -> bool:
        state, table, classes = 0, self._table, self._classes
        other = classes[OTHER]
        for char in name:
            state = table[state][classes.get(char, other)]
            if state < 0:
                return False
        return self._accepting[state]

    def _determine(self, automaton: _Automaton, start: int, accept: int, columns: list[str], pattern: str) -> None:
        reads = [tuple(i for i, char in enumerate(columns) if char in (each or ())) for each in automaton.reads]
        numbers = {automaton.closure([start], at_start=True): 0}
        pending = list(numbers)
        work = 0
        for nodes in pending:  # grows while we go
            steps: dict[int, set[int]] = {}
            for node in nodes:
                for column in reads[node]:
                    steps.setdefault(column, set()).add(automaton.then[node])
            row = [-1] * len(columns)
            for column, step in steps.items():
                target = automaton.closure(step)
                work += len(step) + len(target)
                if target not in numbers:
                    numbers[target] = len(numbers)
                    pending.append(target)
                row[column] = numbers[target]
            self._table.append(row)
            self._accepting.append(accept in automaton.closure(nodes, at_end=True))
            if work > WORK_MAX or len(numbers) > TABLE_STATES_MAX:
                raise InvalidRegularExpression(
                    f"regular expression {pattern[:100]!r} is too complicated: avoid counted repetitions after .*"
                )


def _classes(automaton: _Automaton) -> tuple[dict[str, int], list[str]]:
    """Characters that no part of the pattern tells apart share a column; one of each stands for it."""
    sets = list({reads for reads in automaton.reads if reads is not None})
    columns: dict[tuple[bool, ...], int] = {}
    samples: list[str] = []
    classes: dict[str, int] = {}
    for char in ALPHABET:
        behaviour = tuple(char in each for each in sets)
        if behaviour not in columns:
            columns[behaviour] = len(samples)
            samples.append(char)
        classes[char] = columns[behaviour]
    return classes, samples


class Patterns:
    """Expressions in use, with the topics that each matched in the newest picture."""

    KEPT_MAX = 1_000  # beyond, the cache starts anew

    def __init__(self) -> None:
        self._compiled: dict[str, Pattern | InvalidRegularExpression] = {}  # or why it is refused: it may come again
        self._matched: dict[str, tuple[int, frozenset[str]]] = {}

    def compile(self, pattern: str) -> Pattern:
        """The compiled expression; raises InvalidRegularExpression."""
        found = self._compiled.get(pattern)
        if found is None:
            if len(self._compiled) >= self.KEPT_MAX:
                self._compiled.clear()
                self._matched.clear()
            found = self._compiled[pattern] = _compiled(pattern)
        if isinstance(found, InvalidRegularExpression):
            raise InvalidRegularExpression(str(found))
        return found

    def matching(self, pattern: str, version: int, names: Callable[[], Iterable[str]]) -> frozenset[str]:
        known = self._matched.get(pattern)
        if known is None or known[0] != version:
            compiled = self.compile(pattern)
            known = version, frozenset(name for name in names() if compiled.matches(name))
            self._matched[pattern] = known
        return known[1]


def _compiled(pattern: str) -> Pattern | InvalidRegularExpression:
    try:
        return Pattern(pattern)
    except InvalidRegularExpression as refusal:
        return as_value(refusal)
