"""Questions about a cluster over a plain socket, one at a time: who leads what, who is in sync, who takes messages.

For what is asked around a measurement. It is no load: it is encoded by Runnel's own codec, for whichever broker.
"""

import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeAlias

from bench.load import Refused, connect
from bench.load.line import Line
from runnel.record import records
from runnel.wire.kafka import codec
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

METADATA_VERSION, PRODUCE_VERSION, QUORUM_VERSION = 8, 7, 0
PATIENCE_S = 180.0  # until a cluster is what it was waited for to be
NAP_S = 0.05  # a question costs the broker that is asked some milliseconds
TOPICS_MAX = 50  # topics in one question that is asked again and again: a cluster that elects has other things to do
PARTITIONS_MAX = 500  # partitions in one produce request
NOBODY = -1
QUORUM_TOPIC = "__cluster_metadata"  # where Kafka's controllers keep what they know

Place: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class View:
    """One answer to Metadata."""

    brokers: Mapping[int, str]  # id -> address
    controller: int  # Kafka names any broker here: ask its quorum
    leaders: Mapping[Place, int]
    behind: Mapping[str, int]  # topic -> replicas that are not in sync

    def led_by(self, broker: int) -> list[Place]:
        return [place for place, leader in self.leaders.items() if leader == broker]


class Asker:
    """A connection to one broker, until the end of the block."""

    def __init__(self, address: str) -> None:
        self._connection: socket.socket = connect(address)
        self._line = Line(self._connection)

    def ask(self, api: Api, version: int, request: Any) -> Any:
        return codec.decode_response(
            api, version, self._line.ask(b"".join(codec.encode_request(api, version, 0, "bench", request)))
        )[1]

    def look(self, topics: Sequence[str] | None = None) -> View:
        """The cluster as this broker knows it; all of its topics, or these."""
        wanted = None if topics is None else [m.MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        request = m.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        return view_of(self.ask(Api.METADATA, METADATA_VERSION, request))

    def quorum_leader(self) -> int:
        """Which of Kafka's controllers is the active one, or NOBODY."""
        topic = m.DescribeQuorumRequest.TopicData(
            topic_name=QUORUM_TOPIC, partitions=[m.DescribeQuorumRequest.PartitionData(partition_index=0)]
        )
        answer = self.ask(Api.DESCRIBE_QUORUM, QUORUM_VERSION, m.DescribeQuorumRequest(topics=[topic]))
        found = [partition.leader_id for topic in answer.topics for partition in topic.partitions]
        return int(found[0]) if found else NOBODY

    def produce(self, places: Sequence[Place], batch: bytes, timeout_ms: int = 10_000) -> list[Place]:
        """One batch to each of these partitions with acks=all; those that were refused, or not in time."""
        topics: dict[str, list[m.ProduceRequest.PartitionProduceData]] = defaultdict(list)
        for topic, number in places:
            topics[topic].append(m.ProduceRequest.PartitionProduceData(index=number, records=batch))
        data = [m.ProduceRequest.TopicProduceData(name=name, partition_data=all_) for name, all_ in topics.items()]
        request = m.ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=data)
        answer = self.ask(Api.PRODUCE, PRODUCE_VERSION, request)
        return [(t.name, p.index) for t in answer.responses for p in t.partition_responses if p.error_code]

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def view_of(answer: m.MetadataResponse) -> View:
    partitions = [(topic.name or "", partition) for topic in answer.topics for partition in topic.partitions]
    return View(
        {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers},
        answer.controller_id,
        {(name, p.partition_index): p.leader_id for name, p in partitions},
        {
            topic.name or "": sum(len(p.replica_nodes) - len(p.isr_nodes) for p in topic.partitions)
            for topic in answer.topics
        },
    )


def leader_address(address: str, topic: str, partition: int) -> str:
    """Where the leader of a partition listens."""
    with Asker(address) as asker:
        view = asker.look([topic])
    leader = view.leaders.get((topic, partition), NOBODY)
    if leader not in view.brokers:
        raise Refused(f"{topic}-{partition} has no leader")
    return view.brokers[leader]


def await_brokers(address: str, count: int) -> None:
    """Return once a broker knows so many; it is asked again until it answers."""
    for _ in _tries(f"{count} brokers know each other"):
        try:
            with Asker(address) as asker:
                if len(asker.look([]).brokers) == count:
                    return
        except (OSError, Refused):
            continue


def await_leaders(address: str, topics: Iterable[str], *, gone: int = NOBODY) -> float:
    """When the last partition of these topics was seen with a leader other than `gone`, on the monotonic clock."""
    return _await_all(address, topics, "have leaders", lambda view: led(view, gone))


def await_in_sync(address: str) -> float:
    """When no replica of any partition was behind, on the monotonic clock."""
    with Asker(address) as asker:
        topics = asker.look().behind.keys()
    return _await_all(address, topics, "are in sync", in_sync)


def _await_all(address: str, topics: Iterable[str], what: str, well: Callable[[View], set[str]]) -> float:
    """When the last of these topics was seen to be well.

    They are asked after in small parts, and no more once they are well: asking must not slow what is waited for.
    """
    waiting = dict.fromkeys(topics)
    with Asker(address) as asker:
        for _ in _tries(f"the partitions of {len(waiting)} topics {what}"):
            while found := well(asker.look(list(islice(waiting, TOPICS_MAX)))):
                for topic in found:
                    del waiting[topic]
            if not waiting:
                break
    return time.monotonic()


def led(view: View, gone: int) -> set[str]:
    """The topics all of whose partitions have a leader."""
    lacking = {topic for (topic, _), leader in view.leaders.items() if leader in (NOBODY, gone)}
    return {topic for topic, _ in view.leaders} - lacking


def in_sync(view: View) -> set[str]:
    """The topics that have no replica behind."""
    return {topic for topic, count in view.behind.items() if not count}


def await_acks(address: str, places: Collection[Place]) -> tuple[float, float]:
    """Put one message into each of these partitions, again where it is refused; when the first and all were taken."""
    batch = bytes(records.encode([records.Record(0, int(time.time() * 1000), None, b"hello")]))
    waiting, first = set(places), 0.0
    for _ in _tries(f"{len(places)} partitions take messages"):
        with Asker(address) as asker:
            view = asker.look(list(dict.fromkeys(topic for topic, _ in waiting)))
        for broker, broker_address in view.brokers.items():
            led = [place for place in view.led_by(broker) if place in waiting]
            waiting -= _taken(broker_address, led, batch)
            first = first or (time.monotonic() if len(waiting) < len(places) else 0.0)
        if not waiting:
            break
    return first, time.monotonic()


def _taken(address: str, places: Sequence[Place], batch: bytes) -> set[Place]:
    """Which of these partitions the broker took the batch for."""
    taken: set[Place] = set()
    try:
        with Asker(address) as asker:
            for at in range(0, len(places), PARTITIONS_MAX):
                asked = places[at : at + PARTITIONS_MAX]
                taken |= set(asked) - set(asker.produce(asked, batch))
    except (OSError, Refused):
        pass  # it ended under us: who leads now is asked again
    return taken


def _tries(what: str) -> Iterator[None]:
    """Go round until the caller has what it waits for; its patience ends."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        yield
        time.sleep(NAP_S)
    raise Refused(f"waited {PATIENCE_S:.0f} s until {what}, in vain")
