"""Appending to a partition wherever it is led, for doors whose clients do not know where that is.

Rule 1: the leader is asked, in the words of Produce; what it answers is the answer.
Rule 2: who leads may be changing just now: the next leader is asked, until the time of the request is up. A batch may
        be in the log twice then, unless its producer is idempotent. After silence it is not sent again.
Rule 3: a coordinator writes its own topic where it leads it, and nowhere else.
"""

import asyncio
from collections.abc import Callable

from runnel.broker.elsewhere import ELSEWHERE, PAUSE_MS, is_elsewhere
from runnel.broker.partitions import Partitions
from runnel.broker.peers import Peers
from runnel.broker.produce import Append, Produced, Producing
from runnel.client.errors import check
from runnel.cluster.image import Image
from runnel.model.errors import NotLeader, RetriableError, RunnelError
from runnel.model.ids import BrokerId, Offset, PartitionKey
from runnel.model.seams import Rng
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

__all__ = ["ELSEWHERE", "PAUSE_MS", "Routing"]


class Routing:
    """The verb of appending, on any broker."""

    def __init__(
        self, partitions: Partitions, producing: Producing, peers: Peers, image: Callable[[], Image], rng: Rng
    ) -> None:
        self._partitions = partitions
        self._producing = producing
        self._peers = peers
        self._image = image
        self._rng = rng

    async def produce(self, key: PartitionKey, batch: memoryview, acks: int, timeout_ms: int) -> Produced:
        """Append one batch, here or on its leader; raises why not."""
        return await self._produce(key, batch, acks, timeout_ms, False)

    async def produce_own(self, key: PartitionKey, batch: memoryview, acks: int, timeout_ms: int) -> Produced:
        """Append one batch of a coordinator to its own topic; raises why not."""
        return await self._produce(key, batch, acks, timeout_ms, True)

    async def _produce(self, key: PartitionKey, batch: memoryview, acks: int, timeout_ms: int, own: bool) -> Produced:
        await asyncio.sleep(0)  # a request that was answered at once until now goes on in a task: timeouts need one
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        while True:
            left_ms = max(1, int((end - loop.time()) * 1000))
            try:
                return await self._try(key, batch, acks, left_ms, own)
            except RetriableError as error:
                if not is_elsewhere(error, self._image(), key.topic_id):
                    raise
                await self._pause(end, error)

    async def _try(self, key: PartitionKey, batch: memoryview, acks: int, timeout_ms: int, own: bool) -> Produced:
        leader = self._image().topic_with_id(key.topic_id).partitions[key.number].leader
        try:
            partition = self._partitions.find_by_id(*key)
        except NotLeader:
            if own:
                raise  # rule 3
            await self._peers.reach(leader)
            return await self._ask(leader, key, batch, acks, timeout_ms)
        # The bytes are patched when they are appended, and may have to be sent again.
        copy = memoryview(bytearray(batch))
        [result] = await self._producing.produce([Append(partition, copy)], acks, timeout_ms, lambda: None, own=own)
        if isinstance(result, RunnelError):
            raise result
        return result

    async def _ask(
        self, leader: BrokerId, key: PartitionKey, batch: memoryview, acks: int, timeout_ms: int
    ) -> Produced:
        request = m.ProduceRequest(
            acks=acks or 1,  # to a broker that forwards, silence says nothing
            timeout_ms=timeout_ms,
            topic_data=[
                m.ProduceRequest.TopicProduceData(
                    topic_id=key.topic_id,
                    partition_data=[m.ProduceRequest.PartitionProduceData(index=key.number, records=batch)],
                )
            ],
        )
        answer = await self._peers.ask(leader, Api.PRODUCE, request, m.ProduceResponse, timeout_ms=timeout_ms)
        [told] = answer.responses[0].partition_responses
        check(told.error_code, action=f"append to {key}", broker=str(leader), message=told.error_message)
        return Produced(Offset(told.base_offset), told.log_append_time_ms, Offset(told.log_start_offset))

    async def _pause(self, end: float, error: RetriableError) -> None:
        pause_s = (PAUSE_MS + self._rng.below(PAUSE_MS)) / 1000
        if asyncio.get_running_loop().time() + pause_s >= end:
            raise error
        await asyncio.sleep(pause_s)
