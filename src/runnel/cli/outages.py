"""What a command that waits for a broker says to the person who waits for the command."""

import time

from runnel.cli.output import note
from runnel.client.metadata import BrokerAddress
from runnel.model.errors import RetriableError

TELL_S = 3.0  # shorter outages are nobody's concern: a broker that restarts, a leader that moves


class Outages:
    """Notes on stderr once in each outage which broker is waited for, and why."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}
        self._told: set[tuple[str, int]] = set()

    def connected(self, address: BrokerAddress, error: RetriableError | None) -> None:
        """A connection was tried; without an error, it was made."""
        where = (address.host, address.port)
        if error is None:
            self._since.pop(where, None)
            self._told.discard(where)
            return
        now = time.monotonic()
        if now - self._since.setdefault(where, now) >= TELL_S and where not in self._told:
            self._told.add(where)
            note(f"Still waiting: {error}")
