"""What follows from a history, for the rules that look for anomalies in it."""

from collections import defaultdict
from typing import NamedTuple

from runnel.testing.history import History, Poll, Send, Status


class Anomaly(NamedTuple):
    name: str
    key: str
    detail: str

    def __str__(self) -> str:
        return f"{self.name} {self.key}: {self.detail}"


class Facts:
    """What follows from a history: the log of each key, as far as anybody saw it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sends: dict[str, Send] = {send.value: send for send in history.sends}
        self.polls = [poll for poll in history.polls if isinstance(poll, Poll)]
        self.read: dict[str, set[str]] = defaultdict(set)  # key -> values that somebody read
        self.log: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for poll in self.polls:
            for key, records in poll.records.items():
                for offset, value in records:
                    self.read[key].add(value)
                    self.log[key][offset].add(value)
        for send in history.sends:
            if send.offset is not None and send.status is Status.OK and send.durable:
                self.log[send.key][send.offset].add(send.value)
        self.final: dict[str, set[str]] | None = self._read_at_the_end()
        self.places: dict[str, dict[int, int]] = {}  # key -> offset -> how many messages lie before it
        self.offsets: dict[str, dict[str, list[int]]] = {}  # key -> value -> where it lies
        for key, log in self.log.items():
            self.places[key] = {offset: place for place, offset in enumerate(sorted(log))}
            where = self.offsets.setdefault(key, {})
            for offset in sorted(log):
                for value in sorted(log[offset]):
                    where.setdefault(value, []).append(offset)

    def _read_at_the_end(self) -> dict[str, set[str]] | None:
        """What the reading of everything found; None if there was none."""
        last = [poll for poll in self.polls if poll.final]
        found: dict[str, set[str]] = defaultdict(set)
        for poll in last:
            for key, records in poll.records.items():
                found[key].update(value for _, value in records)
        return found if last else None
