"""Who reads what in a group of the classic protocol: decided by the member that the coordinator made its leader."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from runnel.client.metadata import TopicPartition
from runnel.wire.kafka import codec
from runnel.wire.kafka import messages as m

PROTOCOL_TYPE = "consumer"
PROTOCOL_VERSION = 1  # newer members read it, and it is all that these assignors need

Members = Mapping[str, Sequence[str]]  # member id -> topics it subscribes to
Assignment = dict[str, list[TopicPartition]]


def range_assignor(members: Members, counts: Mapping[str, int]) -> Assignment:
    """Each topic is cut into runs, one for each member: the same numbers of two topics meet in one member."""
    out: Assignment = {member: [] for member in members}
    for topic in sorted(counts):
        readers = sorted(member for member, topics in members.items() if topic in topics)
        if not readers:
            continue
        share, extra = divmod(counts[topic], len(readers))
        first = 0
        for place, member in enumerate(readers):
            size = share + (place < extra)
            out[member] += [TopicPartition(topic, n) for n in range(first, first + size)]
            first += size
    return out


def round_robin_assignor(members: Members, counts: Mapping[str, int]) -> Assignment:
    """All partitions in turn to all members that subscribe to the topic."""
    out: Assignment = {member: [] for member in members}
    order = sorted(members)
    turn = 0
    for topic in sorted(counts):
        if not any(topic in members[member] for member in order):
            continue
        for number in range(counts[topic]):
            while topic not in members[order[turn % len(order)]]:
                turn += 1
            out[order[turn % len(order)]].append(TopicPartition(topic, number))
            turn += 1
    return out


ASSIGNORS: dict[str, Callable[[Members, Mapping[str, int]], Assignment]] = {
    "range": range_assignor,
    "roundrobin": round_robin_assignor,
}


# --- as bytes
def encode_subscription(topics: Iterable[str]) -> bytes:
    return codec.encode_versioned(m.ConsumerProtocolSubscription(topics=sorted(topics)), PROTOCOL_VERSION)


def decode_subscription(data: bytes | bytearray | memoryview) -> list[str]:
    """The topics a member subscribes to; none if its bytes are not a consumer's."""
    try:
        _, subscription = codec.decode_versioned(m.ConsumerProtocolSubscription, data)
    except codec.Malformed:
        return []
    return list(subscription.topics)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for where in partitions:
        topics.setdefault(where.topic, []).append(where.partition)
    rows = [m.ConsumerProtocolAssignment.TopicPartition(topic=t, partitions=n) for t, n in topics.items()]
    return codec.encode_versioned(m.ConsumerProtocolAssignment(assigned_partitions=rows), PROTOCOL_VERSION)


def decode_assignment(data: bytes | bytearray | memoryview | None) -> list[TopicPartition]:
    """The partitions a member was given; none if its bytes are not a consumer's."""
    if not data:
        return []
    try:
        _, assignment = codec.decode_versioned(m.ConsumerProtocolAssignment, data)
    except codec.Malformed:
        return []
    return [TopicPartition(row.topic, n) for row in assignment.assigned_partitions for n in row.partitions]
