"""Single active consumer: one consumer at a time has the messages of a partition, the others stand by.

Rule 1: the first who asks holds the place, and keeps it while it has leases, or asks again before its time is up: twice
        the length of its leases. Who leases for as long as its connection lives keeps it until that ends.
Rule 2: who held it is kept. It has its time anew with a new leader, so that leases which are out stay in one hand.
"""

from typing import Final

FOR_EVER: Final = 1 << 62


class Holder:
    """Who is the active consumer."""

    def __init__(self) -> None:
        self.name = ""
        self.until = 0

    def admits(self, owner: str, leased: int, now: int) -> bool:
        """Whether this consumer holds the place, or may take it."""
        return self.name in ("", owner) or (now >= self.until and not leased)

    def asked(self, owner: str, lease_ms: int, now: int) -> bool:
        """The consumer was admitted and asks; True if it has just taken the place."""
        taken = self.name != owner
        self.name = owner
        self.until = now + 2 * lease_ms if lease_ms else FOR_EVER
        return taken

    def seen(self, owner: str, lease_ms: int, now: int) -> None:
        """It asked again, for what is not there yet."""
        if owner == self.name:
            self.until = max(self.until, now + 2 * lease_ms)

    def gone(self, owner: str) -> bool:
        """A consumer went; True if the place is free by that."""
        if not owner or owner != self.name:
            return False
        self.name, self.until = "", 0
        return True
