"""Keeps the lease of a stream while Spark works on it.

Rule 1: a lease is extended when a third of it is over, in a thread of the driver: however long a batch takes, its
        messages are nobody else's meanwhile.
Rule 2: what could not be extended is no failure here: whether a message can still be accepted is asked at the end.
"""

import logging
import threading
from collections.abc import Callable

from runnel.model.errors import RunnelError
from runnel.pipelines.connector.leasing.lease import Lease

log = logging.getLogger(__name__)


class LeaseKeeper:
    """Extends one lease at a time. `extend` returns how many messages of it are lost."""

    def __init__(self, extend: Callable[[Lease], int], every_s: float) -> None:
        self._extend = extend
        self._every_s = every_s
        self._changed = threading.Condition()
        self._lease: Lease | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def lease(self) -> Lease | None:
        return self._lease

    def keep(self, lease: Lease | None) -> None:
        """Extend this lease from now on, and no other."""
        with self._changed:
            self._lease = lease
            if self._thread is None and lease:
                self._thread = threading.Thread(target=self._run, name="runnel-leases", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while (lease := self._due()) is not None:
            try:
                lost = self._extend(lease)
            except RunnelError as error:
                log.warning("the lease of batch %d could not be extended, it is tried again: %s", lease.id, error)
                continue
            if lost:
                log.warning("%d messages of batch %d are not leased to it any more", lost, lease.id)

    def _due(self) -> Lease | None:
        """The lease that was kept for the whole time between two extensions; None when it is closed."""
        with self._changed:
            while not self._closed:
                kept = self._lease
                changed = self._changed.wait(self._every_s if kept else None)
                if not changed and kept and kept is self._lease:
                    return kept
        return None
