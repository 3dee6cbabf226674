"""Receivers with a filter of their own: what passes is leased, wherever it lies; the rest stays for others.

Rule 1: looking goes on until something passes, stretch by stretch; others have a turn after each, and after a second
        the receiver has had its own. It goes on there when it comes again.
Rule 2: of what nobody ever had, each message is looked at once for each filter: how far that was, is remembered for the
        filters that were used last. What came back is looked at every time.
Rule 3: what is remembered holds for the settings, the generation and the state machine it was learned with; and until
        something comes back as if nobody had had it.
Rule 4: what lies behind one that did not pass is not touched unless it passes, so that who looks leaves no trace. With
        key order all of it is passed over, for the keys, and nothing is remembered here.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from runnel.broker.messages import Stretch
from runnel.broker.offers import Passes, Rules, offers_of
from runnel.queues.values import Granted, Offered, Span
from runnel.record.records import Record

FILTERS_MAX: Final = 64  # of one outlet that are remembered
Found: TypeAlias = tuple[Offered, Record | None]  # the message, if it passes


class Looked:
    """How far each filter was looked for in what nobody ever had."""

    def __init__(self) -> None:
        self._held: object = None
        self._ends: OrderedDict[str, int] = OrderedDict()

    def end(self, text: str, held: object) -> int:
        """Nothing below it passes that nobody had. `held` is what that was learned with: with another it is void."""
        if held != self._held:
            self._held = held
            self._ends.clear()
        return self._ends.get(text, 0)

    def note(self, text: str, end: int) -> None:
        self._ends[text] = end
        self._ends.move_to_end(text)
        if len(self._ends) > FILTERS_MAX:
            self._ends.popitem(last=False)


class Search:
    """One receiver's look through a queue, stretch by stretch."""

    def __init__(self, rules: Rules, passes: Passes, messages_max: int, bytes_max: int) -> None:
        self._rules = rules
        self._passes = passes
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._found: list[Found] = []
        self.at = 0  # all below was looked at
        self.stretch = Stretch(0, 0, ())

    def holds(self, offset: int) -> bool:
        return self.stretch.first <= offset < self.stretch.end

    def look(self, spans: Sequence[Span], fresh: int) -> list[Found]:
        """What to offer of the stretch. `fresh` is the first offset that was never looked at by anybody."""
        self._found, self.at = [], self.stretch.end
        messages = size = 0
        for offer, record in _offers(self.stretch, spans, fresh, self._passes, self._rules):
            self._found.append((offer, record))
            if record is not None:
                messages += 1
                size += offer.size
            if messages >= self._messages_max or size >= self._bytes_max:
                self.at = offer.last + 1
                break
        return self._found

    def first_left(self, grants: Sequence[Granted]) -> int:
        """Where the first lies that passed and was not had; else how far it was looked."""
        had = {offset for grant in grants for offset in range(grant.first, grant.last + 1)}
        left = (record.offset for _, record in self._found if record is not None and record.offset not in had)
        return min(left, default=self.at)


def _offers(stretch: Stretch, spans: Sequence[Span], fresh: int, passes: Passes, rules: Rules) -> Iterator[Found]:
    """What is to be offered; with the message, if that passes."""
    behind = False  # something fresh was left out
    for span in spans:
        if span.first >= stretch.end:
            break
        behind = behind or span.first > fresh
        for offer, record in offers_of(stretch, span, rules):
            if record is not None and offer.passes and not passes(record):
                behind = behind or offer.first >= fresh
                if rules.keyed:
                    yield offer._replace(wanted=False), None
            elif rules.keyed or offer.passes or not (behind and offer.first >= fresh):
                yield offer, record if offer.passes else None
