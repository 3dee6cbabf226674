"""Records that are taken out of batches: all others stay where they are, and the producer's sequences with them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from tests.broker.conftest import OpenPartition, Scenario

from runnel.broker.once_line import Line
from runnel.broker.once_names import Share
from runnel.broker.produce import Append, Produced, Producing
from runnel.broker.recompression import Recompression
from runnel.broker.sifting import SMALL, Sifting
from runnel.model.errors import BatchTooLarge, InvalidRecord, NotLeader, OutOfOrderSequence, RunnelError
from runnel.model.headers import DELAY_MS, DELIVER_AT, MESSAGE_ID
from runnel.model.once import WINDOW
from runnel.model.schedule import Parked
from runnel.record import records
from runnel.record.batch import headers
from runnel.record.compression import Compression
from runnel.record.records import Record
from runnel.replica.partition import Partition
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng
from runnel.testing.gated_disk import GatedDisk

Run = Callable[[Scenario], None]
CLOCK = SystemClock()


class Shelf:
    """A schedule as far as batches go: what was parked, or why it can't be."""

    def __init__(self) -> None:
        self.parked: list[Parked] = []
        self.problem: RunnelError | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def park(self, topic: Any, partition: int, messages: Sequence[Parked], *, timeout_ms: int) -> list[int]:
        await self.open.wait()
        if self.problem is not None:
            raise self.problem
        self.parked += messages
        return [one.due_ms for one in messages]


class Lines:
    """The lines of a broker."""

    def __init__(self) -> None:
        self._lines: dict[Partition, Line] = {}

    def line(self, partition: Partition) -> Line:
        if partition not in self._lines:
            self._lines[partition] = Line(partition, CLOCK, lambda: Share(1_000, 0), Recompression())
        return self._lines[partition]


class Door:
    def __init__(self) -> None:
        self.shelf, self.lines = Shelf(), Lines()
        sifting = Sifting(cast(Any, self.lines), cast(Any, self.shelf), Recompression(), CLOCK, SystemRng())
        self.producing = Producing(CLOCK, sifting=sifting)

    async def send(self, partition: Partition, *rows: Record, **options: Any) -> Produced | RunnelError:
        batch = memoryview(bytearray(records.encode(rows, **options)))
        [result] = await self.producing.produce([Append(partition, batch)], -1, 5_000, lambda: None)
        return result


def row(number: int, value: str, **marks: str) -> Record:
    names = {"name": MESSAGE_ID, "delay": DELAY_MS, "at": DELIVER_AT}
    found = tuple((names[kind], text.encode()) for kind, text in marks.items())
    return Record(number, CLOCK.wall_ms(), b"k", value.encode(), (*found, ("own", b"1")))


async def kept(partition: Partition) -> list[tuple[int, str]]:
    data = memoryview(await partition.log.read(0, 1 << 24, partition.log.end_offset))
    found = [one for at, header in headers(data) for one in records.decode(data[at : at + header.size])]
    return [(one.offset, (one.value or b"").decode()) for one in found]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4, Compression.ZSTD])
def test_what_is_not_due_waits_and_what_came_before_goes(run: Run, compression: Compression) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition, door = await open_partition(delay_enable=True, dedup_window_ms=60_000), Door()
        first = [row(0, "a", name="x"), row(1, "b", delay="60000"), row(2, "c"), row(3, "d", name="x")]
        sent = await door.send(partition, *first, compression=compression)
        assert isinstance(sent, Produced)
        assert sent.base_offset == 0
        assert await kept(partition) == [(0, "a"), (2, "c")]
        assert partition.log.end_offset == 4
        assert [(one.value, one.floor) for one in door.shelf.parked] == [(b"b", WINDOW)]
        assert [name for name, _ in door.shelf.parked[0].headers] == ["own", DELIVER_AT]
        await door.send(partition, row(0, "e", name="x"), row(1, "f", name="y"), compression=compression)
        await door.send(partition, row(0, "g", name="x"), compression=compression)
        assert await kept(partition) == [(0, "a"), (2, "c"), (5, "f")]
        assert partition.log.end_offset == 7

    run(scenario)


def test_a_batch_that_is_sent_again_is_known_and_parks_the_same(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition, door = await open_partition(delay_enable=True), Door()
        batch = [row(0, "a"), row(1, "b", delay="60000")]
        numbered = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 0}
        door.shelf.problem = NotLeader("its schedule is led elsewhere")
        assert isinstance(await door.send(partition, *batch, **numbered), NotLeader)
        assert partition.log.end_offset == 0, "nothing is appended if what has to wait does not"
        door.shelf.problem = None
        first = await door.send(partition, *batch, **numbered)
        again = await door.send(partition, *batch, **numbered)
        assert first == again
        assert [one.id for one in door.shelf.parked] == ["7.2.1"]
        numbered["base_sequence"] = 2
        assert isinstance(await door.send(partition, row(0, "c", delay="60000"), **numbered), Produced)
        assert [one.id for one in door.shelf.parked] == ["7.2.1", "7.2.2"]
        assert await kept(partition) == [(0, "a")]
        assert partition.log.end_offset == 3

    run(scenario)


def test_a_batch_that_is_refused_parks_nothing(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition, door = await open_partition(delay_enable=True, max_message_bytes=500), Door()
        large = await door.send(partition, row(0, "a" * 1_000, delay="60000"))
        assert isinstance(large, BatchTooLarge)
        numbered = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        assert isinstance(await door.send(partition, row(0, "z"), **numbered), Produced)
        numbered["base_sequence"] = 5
        assert isinstance(await door.send(partition, row(0, "a", delay="60000"), **numbered), OutOfOrderSequence)
        wrong = await door.send(partition, row(0, "a", delay="60000"), row(1, "b", at="soon"))
        assert isinstance(wrong, InvalidRecord)
        transactional = {"producer_id": 8, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        assert isinstance(await door.send(partition, row(0, "a", delay="60000"), **transactional), InvalidRecord)
        assert door.shelf.parked == []
        assert await kept(partition) == [(0, "z")]

    run(scenario)


def test_large_batches_are_looked_through_too(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition, door = await open_partition(delay_enable=True), Door()
        count = 3 * SMALL + 7
        await door.send(partition, *(row(n, str(n), **({"delay": "60000"} if n % 2 else {})) for n in range(count)))
        assert [int(one.value or b"") for one in door.shelf.parked] == list(range(1, count, 2))
        assert await kept(partition) == [(n, str(n)) for n in range(0, count, 2)]

    run(scenario)


def test_names_are_free_again_when_a_request_is_given_up(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        settings = {"delay_enable": True, "dedup_window_ms": 60_000}
        one, two, door = await open_partition(0, **settings), await open_partition(1, **settings), Door()
        door.shelf.open.clear()
        batches = [
            memoryview(bytearray(records.encode([row(0, "a", name="x")]))),
            memoryview(bytearray(records.encode([row(0, "b", delay="60000")]))),
        ]
        appends = [Append(one, batches[0]), Append(two, batches[1])]
        sending = asyncio.ensure_future(door.producing.produce(appends, -1, 5_000, lambda: None))
        for _ in range(10):
            await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert isinstance(await asyncio.wait_for(door.send(one, row(0, "c", name="x")), 30), Produced)
        assert await kept(one) == [(0, "c")]

    run(scenario)


def test_two_batches_of_one_name_at_the_same_time_are_one_message(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition, door = await open_partition(dedup_window_ms=60_000), Door()
        await asyncio.gather(*(door.send(partition, row(0, str(n), name="x"), row(1, "-")) for n in range(5)))
        found = [value for _, value in await kept(partition)]
        assert found.count("-") == 5
        assert len(found) == 6
        assert partition.log.end_offset == 10

    run(scenario)
