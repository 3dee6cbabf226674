"""Ends of transactions in the partitions of one broker."""

import asyncio
from typing import Any

from tests.broker.test_fetch import write
from tests.broker.test_produce import Run

from runnel.broker.endings import Endings
from runnel.model import errors as e
from runnel.replica.ending import Ending
from runnel.replica.partition import Partition
from runnel.testing.gated_disk import GatedDisk

GROUPS, STATE = "__consumer_offsets", "__transaction_state"


class Places:
    """The partitions of topic "t" that are led here."""

    def __init__(self, *partitions: Partition) -> None:
        self._partitions = partitions

    def find(self, topic: str, number: int) -> Partition:
        if topic != "t" or number >= len(self._partitions):
            raise e.NotLeader(f"{topic}-{number} is led elsewhere")
        return self._partitions[number]


class Groups:
    """Remember what they were told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, int, bool, int, int]] = []

    async def end_transaction(
        self, number: int, producer_id: int, epoch: int, commit: bool, *, coordinator_epoch: int, version: int = 1
    ) -> None:
        self.told.append((number, producer_id, epoch, commit, coordinator_epoch, version))
        if number:
            raise e.NotLeader("elsewhere")


def test_each_partition_answers_for_itself_and_groups_for_their_offsets(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        one, two = await open_partition(0), await open_partition(1)
        for partition in (one, two):
            await write(partition, 7)
        await write(two, 8)
        groups = Groups()
        places: Any = Places(one, two)
        results = await Endings(places, groups).write(
            [
                (Ending(7, 1, True, 5, 2), [("t", 0), ("t", 1), ("t", 2), (GROUPS, 0), (GROUPS, 1)]),
                (Ending(8, 0, False, 5), [("t", 1), (STATE, 0)]),
            ]
        )
        kinds = {place: type(error) for place, error in results.items() if error is not None}
        assert kinds == {(7, "t", 2): e.NotLeader, (7, GROUPS, 1): e.NotLeader, (8, STATE, 0): e.InvalidTopicName}
        assert len(results) == 7
        assert groups.told == [(0, 7, 1, True, 5, 2), (1, 7, 1, True, 5, 2)]
        assert one.last_stable_offset == one.high_watermark == 2
        assert two.last_stable_offset == two.high_watermark == 4

    run(scenario)


def test_one_that_can_not_be_ended_yet_does_not_keep_the_others_waiting(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        one, two = await open_partition(0), await open_partition(1)
        for partition in (one, two):
            await write(partition, 7)
        disk.gate.clear()
        syncing = asyncio.ensure_future(one.log.sync())
        while not one.log._writer._step_under_way:
            await asyncio.sleep(0)
        places: Any = Places(one, two)
        ending = asyncio.ensure_future(Endings(places, Groups()).write([(Ending(7, 0, True, 5), [("t", 0), ("t", 1)])]))
        while two.last_stable_offset < 2:
            await asyncio.sleep(0)
        assert one.last_stable_offset == 0
        disk.gate.set()
        assert set((await ending).values()) == {None}
        await syncing

    run(scenario)
