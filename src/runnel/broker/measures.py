"""What can be measured of a broker: read from its parts when somebody asks, so that nobody pays for it otherwise.

Rule 1: a broker tells of what it leads, coordinates and keeps; the sum over all brokers is the cluster.
Rule 2: names are of topics, groups and queues, never of partitions: there are too many of those.
Rule 3: going through all partitions is done in turns; what others have to be asked for is left out if they are silent.
Rule 4: a part that can't tell its numbers now leaves out these alone.
"""

import asyncio
from collections import Counter, defaultdict
from contextlib import suppress
from typing import Final, Literal, NamedTuple

from runnel.broker.broker import Broker
from runnel.broker.internal import QUEUES
from runnel.broker.turns import by_turns
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import LATEST, list_offsets
from runnel.cluster.image import NO_LEADER
from runnel.groups.values import FetchOffsets, ListGroups
from runnel.model.errors import RunnelError
from runnel.model.ids import PartitionKey
from runnel.model.schedule import SCHEDULE_COUNT_HERE, CountHere

GROUPS_MAX: Final = 1_000  # whose lag is told
ASK_S: Final = 2.0  # for the ends of partitions that others lead


class Measure(NamedTuple):
    """One number, or one for each label."""

    name: str
    kind: Literal["gauge", "counter"]
    doc: str
    rows: dict[tuple[str, ...], float]
    labels: tuple[str, ...] = ()


def one(name: str, kind: Literal["gauge", "counter"], doc: str, value: float) -> Measure:
    return Measure(name, kind, doc, {(): value})


async def measures(broker: Broker) -> list[Measure]:
    """Everything."""
    found = _cluster(broker)
    for part in (_partitions, _groups, _queues, _schedule):
        with suppress(RunnelError):  # rule 4
            found += await part(broker)
    found += _bounds(broker)
    found += [
        one("loop_lag_seconds", "gauge", "the longest that the loop was late in the last minute", broker.loop_lag_s),
        one("loop_stalls", "counter", "times that the loop was held for too long", broker.loop_stalls),
    ]
    return found


def _bounds(broker: Broker) -> list[Measure]:
    budgets, met = broker.bounds.budgets, broker.bounds.met
    used: dict[tuple[str, ...], float] = {(name,): budget.used for name, budget in budgets.items()}
    limits: dict[tuple[str, ...], float] = {(name,): budget.limit for name, budget in budgets.items()}
    return [
        Measure("budget_used_bytes", "gauge", "bytes that are charged to a budget", used, ("budget",)),
        Measure("budget_limit_bytes", "gauge", "bytes that a budget has", limits, ("budget",)),
        _by("bound", "bounds_met", "counter", "times that a client met a bound, by the bound's setting", met),
    ]


def _cluster(broker: Broker) -> list[Measure]:
    image, unclean = broker.image, broker.metadata.unclean_elections
    leaderless = sum(each.leader == NO_LEADER for topic in image.topics.values() for each in topic.partitions)
    return [
        one("brokers", "gauge", "brokers of the cluster that are alive", len(image.brokers)),
        one("controller", "gauge", "1 on the broker that is the controller", float(broker.forwarding.is_ours)),
        one("topics", "gauge", "topics of the cluster", len(image.topics)),
        one("partitions_offline", "gauge", "partitions of the cluster without a leader", leaderless),
        one("unclean_elections", "counter", "leaders that it chose, as controller, who may lack messages", unclean),
    ]


async def _partitions(broker: Broker) -> list[Measure]:
    held = led = behind = 0
    appended: Counter[str] = Counter()
    size: Counter[str] = Counter()
    aside: Counter[str] = Counter()
    async for partition in by_turns(list(broker.partitions)):
        held += 1
        size[partition.topic] += partition.log.size_bytes
        if partition.unreadable.count:
            aside[partition.topic] += partition.unreadable.count
        if partition.is_leader:
            led += 1
            behind += partition.image is not None and len(partition.image.isr) < len(partition.image.replicas)
            appended[partition.topic] += partition.log.end_offset
    if broker.keepers.unreadable.count:
        aside[QUEUES] += broker.keepers.unreadable.count
    unserved = Counter(shard.topic for shard in broker.unserved())
    return [
        one("partitions", "gauge", "replicas on this broker", held),
        one("partitions_led", "gauge", "partitions that this broker leads", led),
        one("partitions_under_replicated", "gauge", "of those, with replicas that are not in sync", behind),
        _by("topic", "topic_messages", "counter", "offsets given to messages, of what this broker leads", appended),
        _by("topic", "topic_bytes", "gauge", "bytes on the disk of this broker", size),
        _by("topic", "records_set_aside", "counter", "records that are passed over: they can't be read", aside),
        _by(
            "topic", "shards_unserved", "gauge", "parts of the broker's own state that it does not serve now", unserved
        ),
    ]


def _by(label: str, name: str, kind: Literal["gauge", "counter"], doc: str, counts: Counter[str]) -> Measure:
    return Measure(name, kind, doc, {(key,): value for key, value in counts.items()}, (label,))


async def _groups(broker: Broker) -> list[Measure]:
    names = [group.group_id for group in await broker.groups.list(ListGroups())]
    committed: dict[str, dict[PartitionKey, int]] = {}
    async for name in by_turns(names[:GROUPS_MAX]):
        try:
            fetched = await broker.groups.known_offsets(FetchOffsets(name))
        except RunnelError:
            continue  # it moved meanwhile
        committed[name] = {each.partition: each.offset for each in fetched.offsets if each.offset >= 0}
    ends = await _ends(broker, {key for offsets in committed.values() for key in offsets})
    topics = broker.image.topics
    lags: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for name, offsets in committed.items():
        for key, offset in offsets.items():
            if key in ends:
                lags[name, topics[key.topic_id].name] += max(0, ends[key] - offset)
    return [
        one("groups", "gauge", "groups that this broker coordinates", len(names)),
        Measure("group_lag", "gauge", "messages that a group has not committed", dict(lags), ("group", "topic")),
    ]


async def _ends(broker: Broker, keys: set[PartitionKey]) -> dict[PartitionKey, int]:
    """Where partitions end; those of others are asked for, all at once."""
    ends: dict[PartitionKey, int] = {}
    others: dict[TopicPartition, PartitionKey] = {}
    for key in keys:
        partition = broker.partitions.opened(key)
        if partition is not None and partition.is_leader:
            ends[key] = partition.high_watermark
        elif (topic := broker.image.topics.get(key.topic_id)) is not None:
            others[TopicPartition(topic.name, key.number)] = key
    if others:
        try:
            async with asyncio.timeout(ASK_S):
                found = await list_offsets(broker.client.cluster(), dict.fromkeys(others, LATEST))
            ends |= {others[where]: offset.offset for where, offset in found.items()}
        except (RunnelError, TimeoutError):
            return ends
    return ends


async def _queues(broker: Broker) -> list[Measure]:
    counts: dict[str, Counter[str]] = {name: Counter() for name in QUEUE_MEASURES}
    async for outlet in by_turns(list(broker.deliveries)):
        counts["refused"][outlet.queue] += outlet.refusals.messages
        counts["window_full"][outlet.queue] += outlet.refusals.looks
        counts["failing"][outlet.queue] += outlet.shard.trouble is not None
        try:
            told = await outlet.describe()
        except RunnelError:
            continue
        counts["ready"][outlet.queue] += told.ready + told.backlog
        counts["leased"][outlet.queue] += told.leased
        counts["waiting"][outlet.queue] += told.waiting
        counts["dead"][outlet.queue] += told.counters.dead
        counts["accepted"][outlet.queue] += told.counters.accepted
        counts["released"][outlet.queue] += told.counters.released
    counts["dead_letters"].update(await broker.graves.led_here(ASK_S))
    return [_by("queue", f"queue_{name}", kind, doc, counts[name]) for name, (kind, doc) in QUEUE_MEASURES.items()]


QUEUE_MEASURES: Final[dict[str, tuple[Literal["gauge", "counter"], str]]] = {
    "ready": ("gauge", "messages that can be leased, or soon, of queues that are in use"),
    "leased": ("gauge", "messages that are with consumers"),
    "waiting": ("gauge", "messages that wait for another attempt"),
    "dead": ("counter", "messages that were given up"),
    "dead_letters": ("gauge", "dead letters that there are now, in the partitions that this broker leads"),
    "accepted": ("counter", "messages that were accepted"),
    "released": ("counter", "messages that were released, or whose lease ended"),
    "refused": ("counter", "messages that were refused because the queue was full (max.length)"),
    "failing": ("gauge", "partitions whose state can't be read: nothing of them is delivered"),
    "window_full": ("counter", "looks with a filter that ended where the queue can leave out no more (window.max)"),
}


async def _schedule(broker: Broker) -> list[Measure]:
    count = await broker.calls.ask(broker.id, SCHEDULE_COUNT_HERE, CountHere(None))
    return [one("schedule_pending", "gauge", "messages that wait for their time", count.messages)]
