"""Words for places in a partition, as offsets."""

import pytest
from tests.client.talk import OnCluster

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import Committed, commit
from runnel.client.positions import END, START, STORED, Bounds, From, Position, bounds, offset_of, resolve
from runnel.client.producer import Producer

HELD = Bounds(10, 20)


@pytest.mark.parametrize(
    ("position", "offset"),
    [
        (START, 10),
        (END, 20),
        (Position(From.START, 3), 13),
        (Position(From.START, 30), 20),
        (Position(From.END, 3), 17),
        (Position(From.END, 30), 10),
        (Position(From.OFFSET, 7), 7),
        (Position(From.TIME, 1234), 20),
        (STORED, 10),
    ],
)
def test_offset_of(position: Position, offset: int) -> None:
    assert offset_of(position, HELD) == offset


def test_what_is_stored_is_moved_within_what_is_held() -> None:
    assert offset_of(STORED, HELD, stored=15) == 15
    assert offset_of(Position(From.STORED, -3), HELD, stored=15) == 12
    assert offset_of(Position(From.STORED, -30), HELD, stored=15) == 10
    assert offset_of(Position(From.STORED, 30), HELD, stored=15) == 20
    assert offset_of(Position(From.TIME, 5), HELD, at_time=14) == 14


def test_all_of_them_on_a_broker(on_cluster: OnCluster, name: str) -> None:
    where = TopicPartition(name, 0)

    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=1)])
        async with Producer(cluster) as producer:
            for n in range(10):
                await producer.send(name, b"x", timestamp_ms=1_000_000 + n)
        await Admin(cluster).delete_records({where: 2})
        await commit(cluster, name, {where: Committed(5)})
        assert await bounds(cluster, [where]) == {where: Bounds(2, 10)}

        async def at(position: Position) -> int:
            return (await resolve(cluster, {where: position}, group=name))[where]

        assert [await at(START), await at(END), await at(STORED)] == [2, 10, 5]
        assert [await at(Position(From.START, 1)), await at(Position(From.END, 1))] == [3, 9]
        assert await at(Position(From.TIME, 1_000_007)) == 7
        assert await at(Position(From.TIME, 2_000_000)) == 10
        assert await at(Position(From.STORED, -2)) == 3

    on_cluster(work)
