"""What the repair of dead letters asks of the cluster, from the driver and from tasks.

Rule 1: a letter that was sent away is marked with the broker that leads its partition, so that neither `runnel dlq` nor
        a later repair, with whatever checkpoint, sends it a second time.
Rule 2: what was sent away is read from the accounts, which are published together with the messages: a driver that
        died between publishing and marking marks when it comes again, before it repairs anything. What was decided
        and is not published yet is waited for.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from runnel.client.admin import Admin, NewTopic
from runnel.client.calls import call_until_done
from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import READ_COMMITTED, Committed, commit, fetch_committed
from runnel.client.positions import Bounds, bounds
from runnel.client.sinks import Sinks
from runnel.model import calls
from runnel.model.errors import ConcurrentTransactions, TopicAlreadyExists
from runnel.model.queue_config import named
from runnel.pipelines.errors import NothingThere
from runnel.pipelines.jobs.deadletters.repair import Account, Target, sent_away

AWAY_MAX: Final = 50_000  # offsets in one call: a broker takes twice as many
LOOK_MS: Final = 50  # behind the last account lies the marker of its transaction, and nothing else to wait for
UNDER_WAY: Final = ("holding", "publishing")
DEAD_LETTERS, VIEW_OF, BYTES_MAX = "dead.letter.topic", "view.of", "max.message.bytes"


async def dead_topic(cluster: Cluster, queue: str) -> str:
    """The topic of a queue's dead letters, which the queue makes when the first one dies."""
    described = await call_until_done(cluster, calls.QUEUE_DESCRIBE, calls.NamedQueue(queue))
    topic = named({each.name: each.value for each in described.settings}[DEAD_LETTERS], queue)
    if not topic:
        raise NothingThere(f"queue {queue!r} drops what is dead: set dead.letter.topic to keep it")
    return topic


async def make_topics(cluster: Cluster, wanted: Sequence[NewTopic]) -> None:
    """Create those of these topics that are not there."""
    there = (await Admin(cluster).view([topic.name for topic in wanted])).topics
    for topic in wanted:
        if topic.name not in there:
            try:
                await Admin(cluster).create_topics([topic])
            except TopicAlreadyExists:
                continue  # somebody else was faster


async def target_of(cluster: Cluster, topic: str) -> Target | None:
    """What a topic takes; None if it is not there, or Runnel's own."""
    found = (await Admin(cluster).view([topic])).topics.get(topic)
    if found is None or found.internal:
        return None
    settings = {entry.name: entry.value for entry in (await Admin(cluster).configs([topic]))[topic]}
    return Target(len(found.partitions), int(settings.get(BYTES_MAX) or 0), bool(settings.get(VIEW_OF)))


async def away(cluster: Cluster, queue: str, partition: int, first: int, last: int) -> set[int]:
    """Which letters of a stretch lie elsewhere by now."""
    found: set[int] = set()
    for begin in range(first, last + 1, AWAY_MAX):
        asked = calls.AskAway(queue, partition, begin, min(begin + AWAY_MAX - 1, last))
        found.update((await call_until_done(cluster, calls.DEAD_AWAY, asked)).offsets)
    return found


async def settled(cluster: Cluster, prefix: str) -> None:
    """Wait until what sinks of this name decided to publish is published: the brokers do that, also after a crash."""

    async def attempt() -> None:
        for sink in await Sinks(cluster).list(prefix):
            if sink.phase in UNDER_WAY:
                raise ConcurrentTransactions(f"sink {sink.sink!r} is {sink.phase} a batch: wait until that is over")

    await cluster.persist(attempt)


class Marker:
    """Reads the accounts as they are published, and marks the letters that were sent away."""

    def __init__(self, cluster: Cluster, queue: str, letters: str, accounts: str) -> None:
        self._cluster = cluster
        self._queue = queue
        self._letters = letters
        self._accounts = accounts
        self._group = f"deadletters-{queue}-accounts"  # how far it is, shown like any other group's

    async def catch_up(self) -> Counter[str]:
        """Mark all that was published and is not marked; how many letters had which outcome."""
        outcomes: Counter[str] = Counter()
        topic = await self._cluster.topic(self._accounts)
        places = [TopicPartition(self._accounts, number) for number in topic.partitions]
        ends = await bounds(self._cluster, places, isolation=READ_COMMITTED)
        stored = await fetch_committed(self._cluster, self._group, places)
        for place, limits in ends.items():
            begin = max(limits.start, stored[place].offset if place in stored else limits.start)
            if begin < limits.end:
                outcomes += await self._mark_all(place, Bounds(begin, limits.end))
        return outcomes

    async def _mark_all(self, place: TopicPartition, span: Bounds) -> Counter[str]:
        """Go through some accounts, and keep how far it came after each answer that they came in."""
        outcomes: Counter[str] = Counter()
        async with Consumer(self._cluster) as consumer:
            await consumer.assign({place: span.start})
            while (reached := consumer.positions[place]) < span.end:
                messages = await consumer.poll(timeout_ms=LOOK_MS)
                accounts = [self._account(message.value) for message in messages]
                ours = [each for each in accounts if each is not None]
                await self._mark(ours)
                outcomes.update(each.outcome for each in ours)
                if (now := consumer.positions[place]) > reached:
                    await commit(self._cluster, self._group, {place: Committed(now)})
        return outcomes

    def _account(self, value: bytes | None) -> Account | None:
        """An account of this queue's letters; anything else in the topic is not ours to read."""
        try:
            account = msgspec.json.decode(value or b"", type=Account)
        except msgspec.MsgspecError:
            return None
        return account if (account.queue, account.letter.topic) == (self._queue, self._letters) else None

    async def _mark(self, accounts: Sequence[Account]) -> None:
        for partition, offsets in sent_away(accounts).items():
            for begin in range(0, len(offsets), AWAY_MAX):
                marked = calls.MarkAway(self._queue, partition, offsets[begin : begin + AWAY_MAX])
                await call_until_done(self._cluster, calls.DEAD_MARK, marked)
