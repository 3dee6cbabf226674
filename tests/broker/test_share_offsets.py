"""How far share groups are, and what of that belongs to queues."""

from pathlib import Path

import pytest
from tests.broker.serving import serve

from runnel.broker.broker import Broker
from runnel.groups.share_values import ShareHeartbeat
from runnel.groups.values import LEAVE
from runnel.model.calls import QUEUE_CREATE, QUEUE_DELETE, CreateQueue, DeleteQueue
from runnel.model.errors import GroupIsQueue, GroupNotFound

GROUP = "mailers"


async def join_and_leave(broker: Broker, topic: str) -> None:
    """Let a share group be there, with a place in a topic and without members."""
    await broker.find_coordinator(GROUP)
    beat = ShareHeartbeat(GROUP, "one", 0, topic_names=(topic,))
    await broker.share_groups.heartbeat(beat)
    await broker.share_groups.heartbeat(ShareHeartbeat(GROUP, "one", LEAVE))


def test_what_a_queue_keeps_is_deleted_with_the_queue_alone(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.calls.ask(broker.id, QUEUE_CREATE, CreateQueue(GROUP))
        await join_and_leave(broker, GROUP)
        with pytest.raises(GroupIsQueue, match="runnel queue delete mailers"):
            await broker.share_offsets.delete_group(GROUP)
        topic = broker.image.topic_named(GROUP)
        with pytest.raises(GroupIsQueue, match="runnel queue rewind mailers"):
            await broker.share_offsets.delete(GROUP, [topic.id])
        assert (await broker.share_groups.describe(GROUP)).topics == (topic.id,)

    serve(tmp_path, scenario)


def test_who_means_a_queue_that_has_no_group_is_told_so(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.find_coordinator(GROUP)
        with pytest.raises(GroupNotFound):
            await broker.share_offsets.delete_group(GROUP)
        await broker.calls.ask(broker.id, QUEUE_CREATE, CreateQueue(GROUP))
        with pytest.raises(GroupIsQueue, match="runnel queue delete mailers"):
            await broker.share_offsets.delete_group(GROUP)
        await broker.calls.ask(broker.id, QUEUE_DELETE, DeleteQueue(GROUP))
        with pytest.raises(GroupNotFound):
            await broker.share_offsets.delete_group(GROUP)

    serve(tmp_path, scenario)
