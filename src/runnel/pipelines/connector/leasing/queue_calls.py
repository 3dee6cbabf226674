"""What a stream asks of queues, in calls that block.

Rule: what is leased and then lost on its way (a connection that broke) is leased to nobody: it comes again when its
      lease runs out.
"""

from collections.abc import Sequence
from itertools import islice
from typing import TypeVar

from runnel.client.calls import attempt, call_until_done
from runnel.client.outcome import error_of_failure
from runnel.client.queue import new_consumer
from runnel.model import calls
from runnel.model.calls import Delivered
from runnel.model.errors import LeaseLost, RetriableError
from runnel.model.limits import MIB
from runnel.pipelines.connector.gateway import Gateway
from runnel.pipelines.connector.leasing.lease import Lease, Place

T = TypeVar("T")

RECEIVE_MAX = 10_000  # messages in one call, and
RECEIVE_BYTES_MAX = 32 * MIB  # bytes: what a broker gives at most
RECEIPTS_MAX = 10_000  # in one call
WAIT_MS = 200  # for the first message: less often asked, and the query still stops at once
ANSWER_MS = 45_000  # a lease is kept before it is answered


class QueueCalls:
    """The queues of one cluster, for one stream."""

    def __init__(self, through: Gateway, lease_ms: int, filter: str) -> None:
        self._through = through
        self._lease_ms = lease_ms
        self._filter = filter
        self._consumer = new_consumer(through.cluster, "spark")
        self._lane = through.cluster.new_lane("receive")

    def ready(self, queue: str) -> int:
        """How many messages can be leased now."""
        named = calls.NamedQueue(queue)
        told = self._through.run(call_until_done(self._through.cluster, calls.QUEUE_DESCRIBE, named))
        return sum(partition.ready for partition in told.partitions)

    def receive(
        self, queues: Sequence[str], messages_max: int, bytes_max: int, *, wait: bool
    ) -> list[tuple[str, Delivered]]:
        """Lease what there is, up to so much, one queue after the other; wait a moment if there is nothing at all."""
        found: list[tuple[str, Delivered]] = []
        room = bytes_max
        for queue in queues:
            while len(found) < messages_max and room > 0:
                some = self._some(queue, messages_max - len(found), room, 0, partial=bool(found))
                if not some:
                    break
                found += ((queue, message) for message in some)
                room -= sum(message.value_bytes or len(message.value or b"") for message in some)
        if not found and wait and messages_max:
            found += ((queues[0], message) for message in self._some(queues[0], messages_max, bytes_max, WAIT_MS))
        return found

    def _some(self, queue: str, count: int, room: int, wait_ms: int, *, partial: bool = False) -> list[Delivered]:
        """One call; with `partial`, failing means that there is no more for now."""
        asked = calls.Receive(
            queue,
            min(count, RECEIVE_MAX),
            min(room, RECEIVE_BYTES_MAX),
            wait_ms,
            self._lease_ms,
            self._consumer,
            self._filter,
            bare=True,
        )
        try:
            return self._through.run(self._through.cluster.persist(lambda: self._lease(asked))).messages
        except RetriableError:
            if partial:
                return []
            raise

    async def _lease(self, asked: calls.Receive) -> calls.Received:
        cluster, lane = self._through.cluster, self._lane
        timeout_ms = asked.wait_ms + ANSWER_MS
        try:
            return await attempt(cluster, calls.QUEUE_RECEIVE, asked, timeout_ms=timeout_ms, lane=lane)
        except BaseException:
            cluster.close_lane(lane)  # so that the broker leases nothing to one who does not listen any more
            self._lane = cluster.new_lane("receive")
            raise

    def accept(self, lease: Lease) -> list[tuple[Place, int]]:
        """Settle all of it; returns what is not leased to it any more."""
        refused: list[tuple[Place, int]] = []
        for queue, some in lease.by_queue().items():
            for part in _parts(some):
                verdicts = [calls.Settlement(receipt, "accept") for _, _, receipt in part]
                asked = calls.Settle(queue, verdicts)
                answer = self._through.run(call_until_done(self._through.cluster, calls.QUEUE_SETTLE, asked))
                refused += [part[number][:2] for number in _lost(answer)]
        return refused

    def extend(self, lease: Lease) -> int:
        """Keep all of it for as long again; returns how many messages are not leased to it any more."""
        lost = 0
        for queue, some in lease.by_queue().items():
            for part in _parts(some):
                asked = calls.Extend(queue, [receipt for _, _, receipt in part], self._lease_ms)
                answer = self._through.run(call_until_done(self._through.cluster, calls.QUEUE_EXTEND, asked))
                lost += len(_lost(answer))
        return lost


def _lost(answer: calls.Settled) -> list[int]:
    """Which were refused as their lease is over; whatever else went wrong is raised."""
    lost: list[int] = []
    for number, failure in enumerate(answer.failures):
        error = error_of_failure(failure)
        if isinstance(error, LeaseLost):
            lost.append(number)
        elif error is not None:
            raise error
    return lost


def _parts(some: Sequence[T]) -> list[Sequence[T]]:
    return [list(islice(some, at, at + RECEIPTS_MAX)) for at in range(0, len(some), RECEIPTS_MAX)]
