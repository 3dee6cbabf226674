"""A member of a share group in a process of its own, driven by lines of JSON as any agent (see agent.py)."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.compat.agent import Agent
from tests.compat.waiting import wait_until

ACCEPT, RELEASE, REJECT, RENEW = "ACCEPT", "RELEASE", "REJECT", "RENEW"
EXPLICIT = {"share.acknowledgement.mode": "explicit"}


@dataclass(frozen=True)
class Got:
    """A message, and how often it has been delivered with this time."""

    topic: str
    partition: int
    offset: int
    value: bytes
    attempt: int

    @property
    def place(self) -> list[Any]:
        return [self.topic, self.partition, self.offset]


class Sharer(Agent):
    """The verbs of a member, typed."""

    def open(self, group: str, *topics: str, **options: str) -> None:
        """Join; nothing is read before the first poll."""
        settings = {name.replace("_", "."): text for name, text in options.items()}
        self.call("open", group=group, topics=list(topics), options={**EXPLICIT, **settings})

    def poll(self, ms: int = 1_000) -> list[Got]:
        """What there is now, or within this time."""
        return [
            Got(each["topic"], each["partition"], each["offset"], bytes.fromhex(each["value"]), each["attempt"])
            for each in self.call("poll", ms=ms)
        ]

    def poll_until(self, count: int) -> list[Got]:
        """Poll and accept until so many messages came."""
        found: list[Got] = []

        def enough() -> bool:
            got = self.poll()
            self.accept(got)
            found.extend(got)
            return len(found) >= count

        wait_until(enough, f"{self.name}: {count} messages", limit_s=90)
        return found

    def take(self) -> list[Got]:
        """The next messages, whenever they come."""
        found: list[Got] = []

        def some() -> bool:
            found.extend(self.poll())
            return bool(found)

        wait_until(some, f"{self.name}: a message", limit_s=90)
        return found

    def freeze(self) -> None:
        """It does nothing until it is thawed; its connections stay."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def acknowledge(self, messages: Iterable[Got], how: str) -> None:
        """Say what became of messages; it is sent with the next poll or commit."""
        self.call("acknowledge", places=[each.place for each in messages], how=how)

    def settle(self, messages: Iterable[Got], how: str) -> None:
        """Say it, and have it kept."""
        self.acknowledge(messages, how)
        results = self.call("commit")
        assert set(results.values()) <= {""}, results

    def accept(self, messages: Iterable[Got]) -> None:
        self.settle(messages, ACCEPT)
