"""Regular expressions over topic names, matched in linear time.

A subscription's expression runs on the broker, for every topic, and comes from anybody. Python's `re` backtracks: one
hostile pattern stalls it for ever. So an expression is compiled here to a finite table (a deterministic automaton over
the 65 characters a topic name can have), and matching is one look-up a character. Compiling is bounded too: an
expression whose table would get too large is refused when the member subscribes, never later.

The syntax is RE2's, as in Kafka, without what can't be decided by a finite table or makes no sense in a name: no
look-around, no back references, no word boundaries. An expression must match the whole name.
"""

import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from runnel.model.errors import InvalidRegularExpression

ALPHABET = string.ascii_letters + string.digits + "._-"
PATTERN_CHARS_MAX = 2_000
NODES_MAX = 2_000  # of the automaton before it is made deterministic; a{1000}{1000} must not fill the memory
TABLE_STATES_MAX = 1_000
WORK_MAX = 100_000  # node visits while compiling: a tenth of a second at most
NESTING_MAX = 50

_ALL = frozenset(ALPHABET)
_DIGITS = frozenset(string.digits)
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_ESCAPES = {"d": _DIGITS, "D": _ALL - _DIGITS, "w": _WORD, "W": _ALL - _WORD, "s": frozenset[str](), "S": _ALL}
_POSIX = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "digit": _DIGITS,
    "lower": frozenset(string.ascii_lowercase),
    "upper": frozenset(string.ascii_uppercase),
    "punct": frozenset("._-"),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}


# --- the tree of an expression
@dataclass(frozen=True, slots=True)
class Chars:
    allowed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Edge:
    """The beginning or the end of the name."""

    at_end: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    body: "Node"
    low: int
    high: int | None


Node = Chars | Edge | Sequence | Choice | Repeat


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0
        self.ignore_case = False
        self.depth = 0

    def parse(self) -> Node:
        tree = self.choice()
        if self.position < len(self.pattern):
            raise self.wrong("unmatched )")
        return tree

    def wrong(self, why: str) -> InvalidRegularExpression:
        shown = self.pattern if len(self.pattern) <= 100 else self.pattern[:97] + "..."
        return InvalidRegularExpression(f"regular expression {shown!r}: {why} at character {self.position + 1}")

    def peek(self) -> str:
        return self.pattern[self.position] if self.position < len(self.pattern) else ""

    def take(self) -> str:
        char = self.peek()
        if not char:
            raise self.wrong("it ends too early")
        self.position += 1
        return char

    def skip(self, text: str) -> bool:
        if self.pattern.startswith(text, self.position):
            self.position += len(text)
            return True
        return False

    def choice(self) -> Node:
        options = [self.sequence()]
        while self.skip("|"):
            options.append(self.sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def sequence(self) -> Node:
        parts: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            if self.skip("\\Q"):
                parts += [self.chars({char}) for char in self.quoted()]
            else:
                parts.append(self.repeated(self.atom()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def quoted(self) -> str:
        end = self.pattern.find("\\E", self.position)
        text = self.pattern[self.position : end if end >= 0 else len(self.pattern)]
        self.position += len(text) + (2 if end >= 0 else 0)
        return text

    def atom(self) -> Node:
        char = self.take()
        match char:
            case "(":
                return self.group()
            case "[":
                return self.bracket()
            case ".":
                return Chars(_ALL)
            case "^":
                return Edge(at_end=False)
            case "$":
                return Edge(at_end=True)
            case "\\":
                return self.escape()
            case "*" | "+" | "?":
                self.position -= 1
                raise self.wrong(f"nothing for {char} to repeat")
        return self.chars({char})

    def chars(self, allowed: Iterable[str]) -> Chars:
        """Characters that no topic name has can stand in a pattern; they match nothing."""
        if self.ignore_case:
            allowed = {form for char in allowed for form in (char.lower(), char.upper())}
        return Chars(_ALL & frozenset(allowed))

    def escape(self) -> Node:
        char = self.take()
        if char == "A":
            return Edge(at_end=False)
        if char == "z":
            return Edge(at_end=True)
        return self.chars(self.escaped(char))

    def escaped(self, char: str) -> frozenset[str]:
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char.isalnum():
            raise self.wrong(f"\\{char} is not supported")
        return frozenset(char)

    def group(self) -> Node:
        before = self.ignore_case
        if self.skip("?") and not self.opened():
            return Sequence(())
        self.depth += 1
        if self.depth > NESTING_MAX:
            raise self.wrong(f"more than {NESTING_MAX} groups inside each other")
        tree = self.choice()
        self.depth -= 1
        if not self.skip(")"):
            raise self.wrong("missing )")
        self.ignore_case = before
        return tree

    def opened(self) -> bool:
        """What follows `(?`: a kind of group, or flags alone (False) that hold from here on."""
        if self.skip("P<") or (self.skip("<") and self.peek() not in "=!"):
            while self.take() != ">":
                pass
            return True
        flags, sign = self.flags()
        if "i" in flags:
            self.ignore_case = sign
        if self.skip(":"):
            return True
        if flags and self.skip(")"):
            return False
        raise self.wrong("this kind of group is not supported")

    def flags(self) -> tuple[str, bool]:
        start, sign = self.position, True
        while self.peek() and self.peek() in "imsU-":
            sign = sign and self.take() != "-"
        return self.pattern[start : self.position], sign

    def bracket(self) -> Node:
        negated = self.skip("^")
        allowed: set[str] = set()
        first = True
        while first or self.peek() != "]":
            allowed |= self.bracket_item()
            first = False
        self.take()
        if self.ignore_case:
            allowed = {form for char in allowed for form in (char.lower(), char.upper())}
        return Chars(_ALL - allowed if negated else _ALL & allowed)

    def bracket_item(self) -> frozenset[str]:
        if self.skip("[:"):
            return self.posix()
        low = self.take()
        if low == "\\":
            low = self.take()
            if low in _ESCAPES:
                return _ESCAPES[low]
            self.escaped(low)
        if self.peek() != "-" or self.pattern[self.position + 1 : self.position + 2] in ("]", ""):
            return frozenset(low)
        self.take()
        high = self.take()
        if high == "\\":
            high = self.take()
            self.escaped(high)
        if high < low:
            raise self.wrong(f"{low}-{high} is no range")
        return frozenset(char for char in ALPHABET if low <= char <= high)

    def posix(self) -> frozenset[str]:
        end = self.pattern.find(":]", self.position)
        name = self.pattern[self.position : end]
        chars = _POSIX.get(name.removeprefix("^")) if end >= 0 else None
        if chars is None:
            raise self.wrong("unknown class of characters")
        self.position = end + 2
        return _ALL - chars if name.startswith("^") else chars

    def repeated(self, atom: Node) -> Node:
        bounds = self.bounds()
        if bounds is None:
            return atom
        self.skip("?")  # reluctant: the same names match
        if self.bounds() is not None:
            raise self.wrong("a repetition of a repetition: put it into a group")
        return Repeat(atom, *bounds)

    def bounds(self) -> tuple[int, int | None] | None:
        match self.peek():
            case "*":
                bounds: tuple[int, int | None] = (0, None)
            case "+":
                bounds = (1, None)
            case "?":
                bounds = (0, 1)
            case "{":
                return self.counted()
            case _:
                return None
        self.position += 1
        return bounds

    def counted(self) -> tuple[int, int | None] | None:
        end = self.pattern.find("}", self.position)
        low, comma, high = self.pattern[self.position + 1 : max(end, 0)].partition(",")
        if not (_whole(low) and (not high or _whole(high))):
            raise self.wrong("{ begins no repetition: write \\{ for the character")
        self.position = end + 1
        most = (int(high) if high else None) if comma else int(low)
        if int(low) > NODES_MAX or (most or 0) > NODES_MAX or (most is not None and most < int(low)):
            raise self.wrong("bad number of repetitions")
        return int(low), most


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


# --- from the tree to nodes that lead to each other
@dataclass(slots=True)
class _Automaton:
    """Nodes are numbers. `free` lists what can be reached from a node without a character."""

    reads: list[frozenset[str] | None] = field(default_factory=list)  # the characters that lead to `then`
    then: list[int] = field(default_factory=list)
    free: list[list[int]] = field(default_factory=list)
    edges: list[bool | None] = field(default_factory=list)  # passable only at the beginning (False) or end (True)

    def node(self, reads: frozenset[str] | None = None, then: int = -1, edge: bool | None = None) -> int:
        if len(self.reads) >= NODES_MAX:
            raise InvalidRegularExpression("regular expression is too large: use fewer or smaller repetitions")
        self.reads.append(reads)
        self.then.append(then)
        self.free.append([])
        self.edges.append(edge)
        return len(self.reads) - 1

    def build(self, tree: Node, end: int) -> int:
        """Nodes for a tree that goes on at `end`; returns where it begins. Built from the back."""
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


class Pattern:
    """A compiled expression. Names are never empty."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_CHARS_MAX:
            raise InvalidRegularExpression(f"regular expression is longer than {PATTERN_CHARS_MAX} characters")
        automaton = _Automaton()
        accept = automaton.node()
        start = automaton.build(_Parser(pattern).parse(), accept)
        self._classes, columns = _classes(automaton)
        self._table: list[list[int]] = []  # state -> class of character -> state; -1: no way to match any more
        self._accepting: list[bool] = []
        self._determine(automaton, start, accept, columns, pattern)

    def matches(self, name: str) -> bool:
        state, table, classes = 0, self._table, self._classes
        for char in name:
            state = table[state][classes.get(char, -1)]  # the last column is for what no name has
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
            row = [-1] * (len(columns) + 1)
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
        self._compiled: dict[str, Pattern] = {}
        self._matched: dict[str, tuple[int, frozenset[str]]] = {}

    def compile(self, pattern: str) -> Pattern:
        """The compiled expression; raises InvalidRegularExpression."""
        found = self._compiled.get(pattern)
        if found is None:
            if len(self._compiled) >= self.KEPT_MAX:
                self._compiled.clear()
                self._matched.clear()
            found = self._compiled[pattern] = Pattern(pattern)
        return found

    def matching(self, pattern: str, version: int, names: Callable[[], Iterable[str]]) -> frozenset[str]:
        known = self._matched.get(pattern)
        if known is None or known[0] != version:
            compiled = self.compile(pattern)
            known = version, frozenset(name for name in names() if compiled.matches(name))
            self._matched[pattern] = known
        return known[1]
