"""Following: this broker fetches from the leaders of what it follows.

Rule 1: one request at a time to one leader on one lane. The next is sent when what the last one brought is durable
        here: what a follower asks beyond, it holds.
Rule 2: a leader is told once what is followed, then only what changed: idle partitions cost nothing. What is too much
        for one request goes into the next ones, which do not wait for news.
Rule 3: trouble with one partition rests that one for a while, or until the image changes; the others go on.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from runnel.broker.peers import Peers
from runnel.broker.standing import stand
from runnel.broker.throttle import Throttle
from runnel.broker.turns import by_turns
from runnel.client.errors import check, name_of
from runnel.cluster.image import NO_LEADER
from runnel.model.errors import RunnelError
from runnel.model.ids import NO_EPOCH, NO_OFFSET, BrokerId, Epoch, Offset, PartitionKey, TopicId
from runnel.model.seams import Rng
from runnel.net.eager import start
from runnel.record.batch import HEADER_BYTES, first_epoch
from runnel.replica.following import Answer, Question, Verdict
from runnel.replica.partition import Partition
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

TIMEOUT_MS: Final = 10_000  # for an answer, beyond the time that the leader may wait for news
REST_MS: Final = 100  # a pause after trouble, with one partition or with a leader
REST_MS_MAX: Final = 2_000
ASKED_MAX: Final = 1_000  # partitions named in one request: of thousands, both sides would be busy for long
NO_SESSION: Final = 0
FULL: Final = 0  # the epoch of a fetch that begins a session

logger = logging.getLogger("runnel.replication")
PartitionData = m.FetchResponse.PartitionData


class Settings(NamedTuple):
    wait_ms: int = 100
    partition_bytes_max: int = 1024 * 1024
    bytes_max: int = 10 * 1024 * 1024
    lanes: int = 1


class Fetcher:
    """What is followed at one leader, on one lane."""

    def __init__(
        self, leader: BrokerId, lane: str, life: Callable[[], m.FetchRequest.ReplicaState], peers: Peers,
        settings: Settings, throttle: Throttle, rng: Rng, on_fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._leader = leader
        self._lane = lane
        self._life = life
        self._peers = peers
        self._settings = settings
        self._throttle = throttle
        self._rng = rng
        self._followed: dict[PartitionKey, Partition] = {}
        # What the leader knows that we ask; None: what came of it led nowhere, so that it must be asked anew.
        self._asked: dict[PartitionKey, Question | None] = {}
        self._due: dict[PartitionKey, None] = {}  # where that may have changed
        self._resting: dict[PartitionKey, asyncio.TimerHandle] = {}
        self._session = (NO_SESSION, FULL)
        self._awake = asyncio.Event()
        self._task = stand(self._run(), on_fatal)

    def put(self, partition: Partition) -> None:
        """Follow a partition, or look at it anew."""
        self._followed[partition.key] = partition
        self._end_rest(partition.key)

    def drop(self, key: PartitionKey) -> None:
        self._followed.pop(key, None)
        self._end_rest(key)

    @property
    def idle(self) -> bool:
        return not self._followed

    async def close(self) -> None:
        for timer in self._resting.values():
            timer.cancel()
        self._task.cancel()
        await asyncio.wait([self._task])

    # --- asking

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._heal()
            asked, forgotten, more = self._compose()
            if not self._asked:
                self._begin_anew()
                await self._awake.wait()
                self._awake.clear()
                continue
            try:
                answer = await self._fetch(asked, forgotten, 0 if more else self._settings.wait_ms)
            except RunnelError as error:
                failures += 1
                logger.info("broker %d can't be followed, trying again: %s", self._leader, error)
                self._begin_anew()
                await asyncio.sleep(self._pause_s(failures))
            else:
                failures = 0
                await self._take(answer)

    async def _heal(self) -> None:
        for key in list(self._due):
            partition = self._followed.get(key)
            if partition is not None and partition.may_heal:
                try:
                    await partition.heal()
                except RunnelError as error:
                    logger.error("%s can't be healed, trying again: %s", partition.name, error)
                    self._rest(key, REST_MS_MAX / 1000)

    def _compose(self) -> tuple[list[tuple[PartitionKey, Question]], list[PartitionKey], bool]:
        """What the leader has to be told: new questions, and what is not asked any more; and whether there is more."""
        asked, forgotten = [], []
        due = list(islice(self._due, ASKED_MAX))
        for key in due:
            del self._due[key]
        for key in due:
            question = self._question(key)
            if question is None:
                if key in self._asked:
                    del self._asked[key]
                    forgotten.append(key)
            elif self._asked.get(key) != question:
                self._asked[key] = question
                asked.append((key, question))
        return asked, forgotten, len(due) == ASKED_MAX

    def _question(self, key: PartitionKey) -> Question | None:
        partition = self._followed.get(key)
        if partition is None or key in self._resting:
            return None
        if (pause_s := self._throttle.pause_s(partition)) > 0:
            self._rest(key, pause_s)
            return None
        question = partition.question()
        if question is None and partition.is_follower:
            self._rest(key, REST_MS / 1000)  # not durable yet, or its damage is being cut off
        return question

    async def _fetch(
        self, asked: Sequence[tuple[PartitionKey, Question]], forgotten: Sequence[PartitionKey], wait_ms: int
    ) -> m.FetchResponse:
        settings = self._settings
        session_id, session_epoch = self._session
        request = m.FetchRequest(
            replica_id=self._life().replica_id, replica_state=self._life(),
            max_wait_ms=wait_ms, min_bytes=1, max_bytes=settings.bytes_max,
            session_id=session_id, session_epoch=session_epoch,
            topics=self._topics(asked), forgotten_topics_data=_forgotten(forgotten),
        )  # fmt: skip
        answer = await self._peers.ask(
            self._leader, Api.FETCH, request, m.FetchResponse,
            timeout_ms=wait_ms + TIMEOUT_MS, lane=self._lane,
        )  # fmt: skip
        check(answer.error_code, action="follow", broker=str(self._leader))
        self._session = answer.session_id, session_epoch + 1 if session_epoch < 2**31 - 1 else 1
        return answer

    def _topics(self, asked: Iterable[tuple[PartitionKey, Question]]) -> list[m.FetchRequest.FetchTopic]:
        topics: dict[TopicId, list[m.FetchRequest.FetchPartition]] = {}
        for key, question in asked:
            topics.setdefault(key.topic_id, []).append(
                m.FetchRequest.FetchPartition(
                    partition=key.number,
                    current_leader_epoch=question.leader_epoch,
                    fetch_offset=question.offset,
                    last_fetched_epoch=question.last_epoch,
                    partition_max_bytes=self._settings.partition_bytes_max,
                )
            )
        return [
            m.FetchRequest.FetchTopic(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ]

    def _begin_anew(self) -> None:
        """Whatever the leader knew of us, say it again."""
        self._session = (NO_SESSION, FULL)
        self._asked.clear()
        self._due.update(dict.fromkeys(self._followed))

    # --- taking

    async def _take(self, answer: m.FetchResponse) -> None:
        """Do what the answer asks for, in all partitions side by side; returns when all of it is durable."""
        waiting: list[asyncio.Task[None]] = []
        try:
            async for partition, question, data in by_turns(self._answered(answer)):
                _, task = start(self._take_one(partition, question, data))
                if task is not None:
                    waiting.append(task)
            if waiting:
                await asyncio.gather(*waiting)
        except asyncio.CancelledError:
            for task in waiting:
                task.cancel()
            raise

    def _answered(self, answer: m.FetchResponse) -> Iterator[tuple[Partition, Question, PartitionData]]:
        """What is still followed, and was asked as it is answered."""
        for topic in answer.responses:
            for data in topic.partitions:
                key = PartitionKey(TopicId(topic.topic_id), data.partition_index)
                partition, question = self._followed.get(key), self._asked.get(key)
                if partition is not None and question is not None:
                    yield partition, question, data

    async def _take_one(self, partition: Partition, question: Question, data: PartitionData) -> None:
        key = partition.key
        self._due[key] = None
        try:
            answer = _answer_of(data)
            self._throttle.took(partition, len(answer.records))
            further = await partition.take(question, answer)
        except RunnelError as error:
            logger.warning("%s can't follow for now: %s", partition.name, error)
            further = False
        if not further:
            if data.error_code:
                logger.debug("%s: broker %d says %s", partition.name, self._leader, name_of(data.error_code))
            # The rest may be over before the next request: the leader must be asked all the same.
            self._asked[key] = None
            self._rest(key, self._pause_s(1))

    # --- resting

    def _rest(self, key: PartitionKey, pause_s: float) -> None:
        self._end_rest(key)
        self._resting[key] = asyncio.get_running_loop().call_later(pause_s, self._end_rest, key)

    def _end_rest(self, key: PartitionKey) -> None:
        timer = self._resting.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._due[key] = None
        self._awake.set()

    def _pause_s(self, failures: int) -> float:
        longest = min(REST_MS << min(failures - 1, 10), REST_MS_MAX)
        return (longest // 2 + self._rng.below(longest // 2 + 1)) / 1000


class Replication:
    """Everything that this broker follows."""

    def __init__(
        self, me: BrokerId, life: Callable[[], Epoch], peers: Peers, settings: Settings, throttle: Throttle, rng: Rng,
        on_fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._me = me
        self._life = life
        self._peers = peers
        self._settings = settings
        self._throttle = throttle
        self._rng = rng
        self._on_fatal = on_fatal
        self._fetchers: dict[tuple[BrokerId, int], Fetcher] = {}
        self._places: dict[PartitionKey, Fetcher] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def follow(self, changed: Iterable[Partition]) -> None:
        """These replicas may have another role, or another leader, than before."""
        if self._closed:
            return
        for partition in changed:
            fetcher = self._fetcher_for(partition)
            before = self._places.get(partition.key)
            if before is not None and before is not fetcher:
                del self._places[partition.key]
                before.drop(partition.key)
            if fetcher is not None:
                self._places[partition.key] = fetcher
                fetcher.put(partition)
        for place in [place for place, fetcher in self._fetchers.items() if fetcher.idle]:
            self._end(self._fetchers.pop(place))

    async def close(self) -> None:
        self._closed = True
        for fetcher in self._fetchers.values():
            self._end(fetcher)
        if self._closing:
            await asyncio.wait(self._closing)

    def _end(self, fetcher: Fetcher) -> None:
        task = asyncio.get_running_loop().create_task(fetcher.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _fetcher_for(self, partition: Partition) -> Fetcher | None:
        image = partition.image
        if not partition.is_follower or image is None or image.leader in (NO_LEADER, self._me):
            return None
        place = image.leader, (partition.key.topic_id.int + partition.key.number) % self._settings.lanes
        if place not in self._fetchers:
            self._fetchers[place] = Fetcher(
                image.leader, f"replica-{place[1]}", self._replica, self._peers, self._settings, self._throttle,
                self._rng, self._on_fatal,
            )  # fmt: skip
        return self._fetchers[place]

    def _replica(self) -> m.FetchRequest.ReplicaState:
        return m.FetchRequest.ReplicaState(replica_id=self._me, replica_epoch=self._life())


def _forgotten(keys: Iterable[PartitionKey]) -> list[m.FetchRequest.ForgottenTopic]:
    topics: dict[TopicId, list[int]] = {}
    for key in keys:
        topics.setdefault(key.topic_id, []).append(key.number)
    return [m.FetchRequest.ForgottenTopic(topic_id=key, partitions=numbers) for key, numbers in topics.items()]


def _answer_of(data: PartitionData) -> Answer:
    high_watermark, start = Offset(data.high_watermark), Offset(data.log_start_offset)
    if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return Answer(Verdict.OUT_OF_RANGE, high_watermark, start)
    if data.error_code:
        return Answer(Verdict.REFUSED, NO_OFFSET, NO_OFFSET)
    diverging = data.diverging_epoch
    if diverging is not None and diverging.epoch != NO_EPOCH:
        epoch, end = Epoch(diverging.epoch), Offset(diverging.end_offset)
        return Answer(Verdict.DIVERGED, high_watermark, start, epoch=epoch, end_offset=end)
    records = memoryview(data.records or b"")
    epoch = Epoch(first_epoch(records)) if len(records) >= HEADER_BYTES else NO_EPOCH
    return Answer(Verdict.OK, high_watermark, start, records, epoch)
