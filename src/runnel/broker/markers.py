"""Telling partitions how transactions ended, until each of them knows.

Rule 1: a partition is asked until its leader says that the marker is committed, for as long as it takes: nobody can
        read past a transaction that has not ended there. Whatever the refusal, the pauses grow, up to a bound.
Rule 2: a partition needs no marker if its topic is gone by the image, or if its leader knows a later epoch of the
        producer: nothing of the transaction can be open there.
Rule 3: all that waits for one broker goes there in one request. What failed before goes apart, and so does what is new
        for the same partition, so that one that can't answer holds up no other.
Rule 4: the coordinator is told once all partitions know. One that ended tells nobody any more: the next one does it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from runnel.broker.peers import Peers
from runnel.client.errors import error_of
from runnel.cluster.image import NO_LEADER, Image
from runnel.model.errors import InvalidProducerEpoch, LeaderNotAvailable, RequestTimedOut, RunnelError, as_value
from runnel.model.ids import BrokerId, Epoch, PartitionKey
from runnel.model.seams import Rng
from runnel.replica.ending import Ending
from runnel.transactions.values import NamedPartition, Verdict
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

AT_ONCE_MAX: Final = 1_000  # markers in one request
TIMEOUT_MS: Final = 30_000  # the other side gives up much earlier, and says so
PAUSE_MS, PAUSE_MS_MAX = 20, 5_000
LOUD_AFTER: Final = 6  # tries: about a second and a half

Written: TypeAlias = dict[tuple[int, str, int], RunnelError | None]
Markers: TypeAlias = Sequence[tuple[Ending, Sequence[NamedPartition]]]

logger = logging.getLogger("runnel.transactions")


class Telling:
    """One transaction whose end is being told."""

    def __init__(
        self, verdict: Verdict, coordinator_epoch: Epoch, is_wanted: Callable[[], bool], on_done: Callable[[], None]
    ) -> None:
        self.verdict = verdict
        self.ending = Ending(
            verdict.producer.producer_id, verdict.producer.epoch, verdict.commit, coordinator_epoch, verdict.version
        )
        self.left = set(verdict.partitions)
        self.is_wanted = is_wanted
        self.on_done = on_done


class Marker(NamedTuple):
    """What one partition has to be told."""

    telling: Telling
    key: PartitionKey
    tries: int = 0


class Lane(NamedTuple):
    """Where markers wait together."""

    broker: BrokerId
    again: bool


class MarkerSender:
    """Has partitions told, here and on other brokers."""

    def __init__(
        self, me: BrokerId, peers: Peers, write_here: Callable[[Markers], Awaitable[Written]],
        image: Callable[[], Image], rng: Rng,
    ) -> None:  # fmt: skip
        self._me = me
        self._peers = peers
        self._write_here = write_here
        self._image = image
        self._rng = rng
        self._lanes: dict[Lane, list[Marker]] = {}
        self._senders: dict[Lane, asyncio.Task[None]] = {}
        self._pauses: dict[asyncio.TimerHandle, list[Marker]] = {}
        self._troubled: set[PartitionKey] = set()  # the last marker for these failed

    def tell(self, telling: Telling) -> None:
        """Begin to tell all partitions of a transaction."""
        if telling.left:
            self._route([Marker(telling, key) for key in telling.left])
        else:
            telling.on_done()

    def follow(self) -> None:
        """The image changed: what waits for its next try may go somewhere else now."""
        paused, self._pauses = self._pauses, {}
        for timer in paused:
            timer.cancel()
        self._route([marker for markers in paused.values() for marker in markers])

    def close(self) -> None:
        for timer in self._pauses:
            timer.cancel()
        self._pauses.clear()
        self._lanes.clear()
        for sender in self._senders.values():
            sender.cancel()

    # --- where to

    def _route(self, markers: Iterable[Marker]) -> None:
        """Put each in the line of its leader."""
        waiting: list[Marker] = []
        for marker in markers:
            if not marker.telling.is_wanted():
                continue  # rule 4
            leader = self._leader(marker.key)
            if leader is None:
                self._done(marker)
            elif leader == NO_LEADER:
                waiting.append(self._failed(marker, LeaderNotAvailable(f"{marker.key} has no leader")))
            else:
                self._enqueue(Lane(leader, marker.key in self._troubled), marker)
        self._pause(waiting)

    def _leader(self, key: PartitionKey) -> BrokerId | None:
        """Who leads a partition; None if it is gone."""
        topic = self._image().topics.get(key.topic_id)
        return topic.partitions[key.number].leader if topic is not None else None

    def _enqueue(self, lane: Lane, marker: Marker) -> None:
        self._lanes.setdefault(lane, []).append(marker)
        if lane not in self._senders:
            sender = asyncio.get_running_loop().create_task(self._send_all(lane))
            self._senders[lane] = sender
            sender.add_done_callback(_report)

    # --- sending

    async def _send_all(self, lane: Lane) -> None:
        """Send what waits for a broker, until nothing does."""
        try:
            while waiting := self._lanes.pop(lane, None):
                batch, rest = waiting[:AT_ONCE_MAX], waiting[AT_ONCE_MAX:]
                if rest:
                    self._lanes[lane] = rest
                await self._send(lane, [marker for marker in batch if marker.telling.is_wanted()])
        finally:
            del self._senders[lane]

    async def _send(self, lane: Lane, batch: list[Marker]) -> None:
        named = [(marker, self._named(marker.key)) for marker in batch]
        missing: RunnelError = RequestTimedOut("the leader left this partition out of its answer")
        written: Written = {}
        try:
            written = await self._write(lane, _grouped(named))
        except RunnelError as error:
            missing = as_value(error)
        verdicts = [(marker, self._judged(marker, name, written, missing)) for marker, name in named]
        self._pause([self._failed(marker, problem) for marker, problem in verdicts if problem is not None])

    def _named(self, key: PartitionKey) -> NamedPartition | None:
        """What a partition is called in a request; None if its topic is gone."""
        topic = self._image().topics.get(key.topic_id)
        return None if topic is None else (topic.name, key.number)

    def _judged(
        self, marker: Marker, name: NamedPartition | None, written: Written, missing: RunnelError
    ) -> RunnelError | None:
        """Why a marker has to be sent again, if so."""
        ending = marker.telling.ending
        error = None if name is None else written.get((ending.producer_id, *name), missing)
        if isinstance(error, InvalidProducerEpoch):
            logger.warning("%s needs no marker of producer %d: %s", name, ending.producer_id, error)  # rule 2
            error = None
        if error is None:
            self._done(marker)
        return error

    def _done(self, marker: Marker) -> None:
        telling = marker.telling
        telling.left.discard(marker.key)
        self._troubled.discard(marker.key)
        if not telling.left and telling.is_wanted():
            telling.on_done()

    async def _write(self, lane: Lane, markers: Markers) -> Written:
        if lane.broker == self._me:
            return await self._write_here(markers)
        answer = await self._peers.ask(
            lane.broker, Api.WRITE_TXN_MARKERS, _request(markers), m.WriteTxnMarkersResponse,
            timeout_ms=TIMEOUT_MS, lane="markers again" if lane.again else "markers",
        )  # fmt: skip
        return {
            (marker.producer_id, topic.name, partition.partition_index): _error(partition.error_code, lane.broker)
            for marker in answer.markers
            for topic in marker.topics
            for partition in topic.partitions
        }

    # --- trying again

    def _failed(self, marker: Marker, error: RunnelError) -> Marker:
        self._troubled.add(marker.key)
        tries = marker.tries + 1
        verdict = marker.telling.verdict
        logger.log(
            logging.WARNING if tries % LOUD_AFTER == 0 else logging.DEBUG,
            "%s does not know yet that the transaction of %r (producer %d, epoch %d) ended, tried %d times: %s",
            marker.key, verdict.transactional_id, *verdict.producer, tries, error,
        )  # fmt: skip
        return marker._replace(tries=tries)

    def _pause(self, markers: list[Marker]) -> None:
        """Try these again later; those that failed as often go together."""
        by_tries: dict[int, list[Marker]] = {}
        for marker in markers:
            by_tries.setdefault(marker.tries, []).append(marker)
        for tries, some in by_tries.items():
            pause_ms = min(PAUSE_MS << min(tries, 10), PAUSE_MS_MAX)
            delay_s = (pause_ms + self._rng.below(pause_ms)) / 1000
            self._arm(delay_s, some)

    def _arm(self, delay_s: float, markers: list[Marker]) -> None:
        def wake() -> None:
            self._route(self._pauses.pop(timer, []))

        timer = asyncio.get_running_loop().call_later(delay_s, wake)
        self._pauses[timer] = markers


def _grouped(named: Iterable[tuple[Marker, NamedPartition | None]]) -> Markers:
    """The markers of one request; those of one transaction together."""
    partitions: dict[int, tuple[Ending, list[NamedPartition]]] = {}
    for marker, name in named:
        if name is not None:
            partitions.setdefault(id(marker.telling), (marker.telling.ending, []))[1].append(name)
    return list(partitions.values())


def _request(markers: Markers) -> m.WriteTxnMarkersRequest:
    return m.WriteTxnMarkersRequest(
        markers=[
            m.WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=ending.producer_id,
                producer_epoch=ending.epoch,
                transaction_result=ending.commit,
                topics=[
                    m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=name, partition_indexes=numbers)
                    for name, numbers in _by_topic(partitions).items()
                ],
                coordinator_epoch=ending.coordinator_epoch,
                transaction_version=ending.version,
            )
            for ending, partitions in markers
        ]
    )


def _by_topic(partitions: Iterable[NamedPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, number in partitions:
        topics.setdefault(name, []).append(number)
    return topics


def _error(code: int, broker: BrokerId) -> RunnelError | None:
    return error_of(code, action="end a transaction", broker=str(broker)) if code else None


def _report(sender: "asyncio.Task[None]") -> None:
    if not sender.cancelled() and (error := sender.exception()):
        logger.error("telling partitions how transactions ended failed", exc_info=error)
