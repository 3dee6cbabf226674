"""Following a leader whose answers a test writes."""

import asyncio
from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

from runnel.broker.peers import Peers
from runnel.broker.replication import Fetcher, Settings
from runnel.broker.throttle import Throttle
from runnel.cluster.image import Image
from runnel.cluster.image import Partition as PartitionImage
from runnel.model.ids import BrokerId, Epoch
from runnel.model.topic_config import FlushMode
from runnel.record import batch, records
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng
from runnel.testing.gated_disk import GatedDisk
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.error_codes import ErrorCode

from .conftest import ME, Scenario

LEADER, EPOCH = BrokerId(2), Epoch(3)
TOPIC = UUID(int=1)
PartitionData = m.FetchResponse.PartitionData


class Leader:
    """Answers each fetch when the test says so; stands for the connection to it."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[tuple[m.FetchRequest, asyncio.Future[m.FetchResponse]]] = asyncio.Queue()

    async def ask(self, broker: BrokerId, api: object, request: m.FetchRequest, *_: Any, **__: Any) -> m.FetchResponse:
        answer: asyncio.Future[m.FetchResponse] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((request, answer))
        return await answer

    async def hear(self, *answers: PartitionData) -> list[int]:
        """Take the next fetch and answer it; the numbers of the partitions that it asked for."""
        request, answer = await self._asked.get()
        topic = m.FetchResponse.FetchableTopicResponse(topic_id=TOPIC, partitions=list(answers))
        answer.set_result(m.FetchResponse(session_id=7, responses=[topic]))
        return [each.partition for topic in request.topics for each in topic.partitions]


def refusal(number: int) -> PartitionData:
    return PartitionData(partition_index=number, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)


def news(number: int) -> PartitionData:
    made = bytearray(records.encode([records.Record(0, 1_000, None, b"x")]))
    batch.patch(made, 0, EPOCH)
    return PartitionData(partition_index=number, high_watermark=0, log_start_offset=0, records=memoryview(made))


def fetcher_of(leader: Leader) -> Fetcher:
    clock = SystemClock()
    throttle = Throttle(ME, lambda: Image(cluster_id="c"), clock)
    life = m.FetchRequest.ReplicaState(replica_id=ME, replica_epoch=0)
    return Fetcher(LEADER, "lane", lambda: life, cast(Peers, leader), Settings(), throttle, SystemRng())


def test_what_was_refused_is_asked_anew_though_its_rest_ended_before_the_next_request(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        refused, slow = await open_partition(0), await open_partition(1, flush_mode=FlushMode.COMMIT)
        for partition in (refused, slow):
            await partition.apply(PartitionImage(LEADER, EPOCH, Epoch(1), (LEADER, ME), (LEADER, ME)))
        leader = Leader()
        fetcher = fetcher_of(leader)
        fetcher.put(refused)
        fetcher.put(slow)
        disk.gate.clear()
        assert sorted(await leader.hear(refusal(0), news(1))) == [0, 1]
        while not slow.log.busy:
            await asyncio.sleep(0)
        fetcher.put(refused)  # while the other is being synced, an image ends the rest of the one that was refused
        disk.gate.set()
        assert sorted(await leader.hear()) == [0, 1]
        await fetcher.close()

    run(scenario)
