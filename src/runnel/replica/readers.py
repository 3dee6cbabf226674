"""Those who wait until there is more to read."""

from typing import Protocol

ENOUGH = 2**62  # bytes: whoever waits for them has waited long enough


class Watcher(Protocol):
    """Who waits until there is more to read."""

    def grown(self, bytes_added: int) -> None: ...


class Readers:
    """Of one partition, up to one bound. First come, first served."""

    __slots__ = ("_bytes_seen", "_watchers")

    def __init__(self, bytes_seen: int = 0) -> None:
        self._watchers: dict[Watcher, None] = {}
        self._bytes_seen = bytes_seen

    def add(self, watcher: Watcher) -> None:
        self._watchers[watcher] = None

    def remove(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def wake(self, size_bytes: int) -> None:
        """The bound moved; the log has so many bytes now."""
        # At least one: retention may have made the log smaller meanwhile.
        grown, self._bytes_seen = max(size_bytes - self._bytes_seen, 1), size_bytes
        if self._watchers:
            for watcher in list(self._watchers):
                watcher.grown(grown)

    def wake_all(self) -> None:
        """What they wait for may never come: let them look."""
        for watcher in list(self._watchers):
            watcher.grown(ENOUGH)
