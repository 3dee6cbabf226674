"""Sizes of logs, asked of any broker of a cluster: all of them know, whoever leads, and views are their source."""

from pathlib import Path

import pytest
from tests.test_replication import cluster_of, create, eventually, run
from tests.test_views import make_view, send

from runnel.client import log_sizes as client
from runnel.client.log_sizes import log_sizes
from runnel.client.metadata import TopicPartition
from runnel.model import log_calls
from runnel.model.errors import InvalidRequest, UnknownTopic
from runnel.model.log_calls import SizesAsked, SizesOf

PLACES = {TopicPartition("t", number): [0, 1, 2, 99] for number in range(3)}


def test_every_broker_tells_the_same_of_what_others_lead(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers, partitions=3)
            for partition in range(3):
                await send(brokers, partition, "a")
                await send(brokers, partition, "b" * (1 + partition))
            await make_view(brokers, "key = 'a'")
            async with brokers.client() as cluster:
                told = await log_sizes(cluster, PLACES)
                of_view = await log_sizes(cluster, {TopicPartition("v", w.partition): o for w, o in PLACES.items()})
            assert {sizes[0] for sizes in told.values()} == {0}
            ends = [sizes[-1] for sizes in told.values()]
            assert [end - ends[0] for end in ends] == [0, 1, 2], "a byte more in every partition"
            assert list(of_view.values()) == list(told.values())
            asked = SizesOf([SizesAsked(where.topic, where.partition, some) for where, some in PLACES.items()])
            for server in brokers.up.values():
                assert (await server.broker.log_sizes(asked)).places == list(told.values())

    run(scenario())


def test_the_next_leader_is_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers)
            await send(brokers, 0, "a")
            asked = SizesOf([SizesAsked("t", 0, [1])])
            before = [await server.broker.log_sizes(asked) for server in brokers.up.values()]
            await brokers.kill(brokers.image().leader)
            after = [await server.broker.log_sizes(asked) for server in brokers.up.values()]
            await eventually(lambda: brokers.image().leader in brokers.up)
            assert [sizes.places[0] for sizes in before + after] == [before[0].places[0]] * 5

    run(scenario())


def test_what_is_not_there_and_what_is_too_much_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers)
            server = next(iter(brokers.up.values()))
            for place in (SizesAsked("nowhere", 0, [0]), SizesAsked("t", 7, [0])):
                with pytest.raises(UnknownTopic):
                    await server.broker.log_sizes(SizesOf([place]))
            with pytest.raises(InvalidRequest, match="in parts"):
                await server.broker.log_sizes(SizesOf([SizesAsked("t", 0, [0] * (log_calls.OFFSETS_MAX + 1))]))

    run(scenario())


def test_the_client_asks_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers, partitions=3)
            for partition in range(3):
                await send(brokers, partition, "a", "b", "c")
            async with brokers.client() as cluster:
                whole = await log_sizes(cluster, PLACES)
                monkeypatch.setattr(client, "OFFSETS_MAX", 3)
                assert await log_sizes(cluster, PLACES) == whole
                assert await log_sizes(cluster, {}) == {}

    run(scenario())
