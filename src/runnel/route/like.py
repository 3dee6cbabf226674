"""LIKE, in time linear in the text: `%` stands for any run of characters, `_` for one.

Rule 1: nothing is tried twice. Between two `%` the leftmost place is the best one, so that no pattern goes back.
Rule 2: what stands between two `%` is looked for with str.find, which is linear; with a `_` inside it, character by
        character: what such parts cost is bounded by their length, which the compiler bounds (`Pattern.gapped`).
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

Part: TypeAlias = tuple[str | None, ...]  # characters; None: any one
Finder: TypeAlias = Callable[[str, int, int], int]  # (text, from, until) -> where the part ends, or -1


class Pattern(NamedTuple):
    """A pattern, ready to be matched."""

    matches: Callable[[str], bool]
    gapped: int  # characters of parts between two % that have a _ inside


def pattern_of(text: str, escape: str | None) -> Pattern:
    """Raises ValueError if the escape character stands before anything but %, _ and itself."""
    parts = _parts_of(text, escape)
    if len(parts) == 1:
        return Pattern(_whole(parts[0]), 0)
    middles = [part for part in parts[1:-1] if part]
    cores = [_core_of(part) for part in middles]
    return Pattern(_open(parts[0], parts[-1], middles), sum(len(core) for core in cores if None in core))


def pieces_of(text: str, escape: str | None) -> list[str]:
    """The runs of characters that stand in whatever matches."""
    return [piece for part in _parts_of(text, escape) for _, piece in _pieces(part)]


def _parts_of(text: str, escape: str | None) -> list[Part]:
    """What stands before, between and behind the `%`."""
    parts: list[list[str | None]] = [[]]
    characters = iter(text)
    for character in characters:
        if character == escape:
            meant = next(characters, "")
            if meant not in ("%", "_", escape):
                raise ValueError(f"{escape} stands before {meant or 'nothing'}")
            parts[-1].append(meant)
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append(None if character == "_" else character)
    return [tuple(part) for part in parts]


def _whole(part: Part) -> Callable[[str], bool]:
    if None not in part:
        return _joined(part).__eq__
    check = _checker(part)
    size = len(part)
    return lambda text: len(text) == size and check(text, 0)


def _open(head: Part, tail: Part, middles: Sequence[Part]) -> Callable[[str], bool]:
    """A pattern with a `%` at least."""
    if not middles and None not in head and None not in tail:
        return _ends(_joined(head), _joined(tail))
    if not head and not tail and len(middles) == 1 and None not in middles[0]:
        wanted = _joined(middles[0])
        return lambda text: wanted in text
    starts, ends = _checker(head), _checker(tail)
    finders = tuple(_finder(part) for part in middles)
    head_size, tail_size = len(head), len(tail)

    def matches(text: str) -> bool:
        place, until = head_size, len(text) - tail_size
        if place > until or not starts(text, 0) or not ends(text, until):
            return False
        for find in finders:
            place = find(text, place, until)
            if place < 0:
                return False
        return True

    return matches


def _ends(head: str, tail: str) -> Callable[[str], bool]:
    """`head%tail`, the common ones."""
    if not tail:
        return lambda text: text.startswith(head)
    if not head:
        return lambda text: text.endswith(tail)
    size = len(head) + len(tail)
    return lambda text: len(text) >= size and text.startswith(head) and text.endswith(tail)


def _checker(part: Part) -> Callable[[str, int], bool]:
    """Whether a part stands at a place. The text is long enough there."""
    if None not in part:
        expected = _joined(part)
        return lambda text, place: text.startswith(expected, place)
    pieces = _pieces(part)
    return lambda text, place: all(text.startswith(piece, place + at) for at, piece in pieces)


def _finder(part: Part) -> Finder:
    """Where a part ends at its leftmost place."""
    core = _core_of(part)
    lead = next((at for at, each in enumerate(part) if each is not None), len(part))
    trail = len(part) - lead - len(core)
    size = len(core)
    if None in core:
        search = re.compile("".join("." if each is None else re.escape(each) for each in core), re.DOTALL).search

        def find_gapped(text: str, place: int, until: int) -> int:
            found = search(text, place + lead, until - trail)
            return found.end() + trail if found else -1

        return find_gapped
    wanted = _joined(core)

    def find(text: str, place: int, until: int) -> int:
        at = text.find(wanted, place + lead, max(until - trail, 0))
        return at + size + trail if at >= 0 else -1

    return find


def _core_of(part: Part) -> Part:
    """A part without the `_` at both its ends: they only keep a distance."""
    places = [at for at, each in enumerate(part) if each is not None]
    return part[places[0] : places[-1] + 1] if places else ()


def _pieces(part: Part) -> tuple[tuple[int, str], ...]:
    """(place, text) of each run of characters."""
    runs = re.finditer(r"[^\x00]+", "".join("\x00" if each is None else "\x01" for each in part))
    return tuple((run.start(), _joined(part[run.start() : run.end()])) for run in runs)


def _joined(part: Part) -> str:
    return "".join(each for each in part if each is not None)
