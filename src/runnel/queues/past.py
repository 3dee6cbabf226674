"""How messages ended, as far as that is not plain: for consumers who say once more, or too late, that they accept one.

Rule 1: a message that is done was accepted by its first attempt, unless something else is noted here: the later attempt
        that it was accepted by, or 0 if it ended otherwise (it left, or was dropped).
Rule 2: notes are kept together with what they tell of, and go with a rewind: all receipts are void then.
Rule 3: there are few of them. Those of the lowest offsets are forgotten first, and below them (`sure_from`) nobody is
        told that what is done was accepted: a refusal harms nobody, a wrong promise does.
"""

from typing import Final, NamedTuple

from runnel.model.step import Step
from runnel.queues.records import past_record

NOTES_MAX: Final = 256
OTHERWISE: Final = 0
ANY: Final = 0


class Note(NamedTuple):
    last: int
    attempt: int


class Past:
    def __init__(self) -> None:
        self._notes: dict[int, Note] = {}  # by the first offset
        self.sure_from = 0

    def restore(self, first: int, note: tuple[int, int] | None) -> None:
        """Take over one kept record."""
        self._notes.pop(first, None)
        if note is not None:
            self._notes[first] = Note(*note)

    def note(self, first: int, last: int, attempt: int, step: Step) -> None:
        """These ended: accepted by this attempt, or otherwise."""
        if attempt == 1:
            return
        newest = next(reversed(self._notes), first)
        if newest < first and self._notes[newest] == Note(first - 1, attempt):
            first = newest
        self._notes[first] = Note(last, attempt)
        step.records.append(past_record(first, self._notes[first]))
        if len(self._notes) > NOTES_MAX:
            lowest = min(self._notes)
            self.sure_from = max(self.sure_from, self._notes.pop(lowest).last + 1)
            step.records.append(past_record(lowest, None))

    def was_accepted(self, first: int, last: int, attempt: int) -> bool:
        """Whether all of these, which are done, were certainly accepted, by this attempt (or by ANY)."""
        if first < self.sure_from:
            return False
        touched = [(at, note) for at, note in self._notes.items() if at <= last and first <= note.last]
        if attempt == ANY:
            return all(note.attempt != OTHERWISE for _, note in touched)
        if attempt == 1:
            return not touched
        noted = sum(min(last, note.last) - max(first, at) + 1 for at, note in touched if note.attempt == attempt)
        return noted == last - first + 1

    def rewind(self, step: Step) -> None:
        step.records.extend(past_record(first, None) for first in self._notes)
        self._notes.clear()
        self.sure_from = 0
