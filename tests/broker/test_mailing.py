"""Messages that come one by one go in batches, in order, each once."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from runnel.broker import mailing
from runnel.broker.mailing import Mailing
from runnel.broker.produce import Produced
from runnel.model.errors import (
    BatchTooLarge,
    InvalidRecord,
    NotLeader,
    OutOfOrderSequence,
    RequestTimedOut,
    RunnelError,
    TooBusy,
)
from runnel.model.ids import NO_TOPIC_ID, Offset, PartitionKey, ProducerId
from runnel.record.batch import read_header
from runnel.record.records import decode

KEY = PartitionKey(NO_TOPIC_ID, 0)


class Log:
    """A partition that remembers what it was given; `gate` holds appends, `errors` are raised first.

    A batch with a message that says `bad` is refused.
    """

    def __init__(self) -> None:
        self.batches: list[list[bytes | None]] = []
        self.producers: list[tuple[int, int]] = []  # producer id, base sequence
        self.errors: list[RunnelError] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._end = 0
        self._ids = 0

    async def append(self, key: PartitionKey, batch: memoryview, acks: int, timeout_ms: int) -> Produced:
        await self.gate.wait()
        header = read_header(batch)
        self.producers.append((header.producer_id, header.base_sequence))
        if self.errors:
            raise self.errors.pop(0)
        values = [record.value for record in decode(batch)]
        if b"bad" in values:
            raise InvalidRecord("every record needs a key")
        self.batches.append(values)
        base, self._end = self._end, self._end + header.count
        return Produced(Offset(base), -1, Offset(0))

    async def new_producer(self) -> ProducerId:
        self._ids += 1
        return ProducerId(self._ids)

    def mailing(self) -> Mailing:
        return Mailing(KEY, self.append, self.new_producer)


def run(scenario: Callable[[Log], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario(Log()), 30)

    asyncio.run(main())


def put(to: Mailing, text: bytes) -> "asyncio.Future[int]":
    return to.put(b"k", text, (("h", b"v"),), 1)


def test_what_comes_together_goes_together() -> None:
    async def scenario(log: Log) -> None:
        to = log.mailing()
        offsets = await asyncio.gather(*[put(to, b"%d" % n) for n in range(5)])
        assert offsets == list(range(5))
        assert log.batches == [[b"0", b"1", b"2", b"3", b"4"]]

    run(scenario)


def test_what_comes_meanwhile_goes_next_in_one_batch_and_in_order() -> None:
    async def scenario(log: Log) -> None:
        log.gate.clear()
        to = log.mailing()
        first = put(to, b"first")
        await asyncio.sleep(0.01)
        rest = []
        for n in range(20):
            rest.append(put(to, b"%d" % n))
            await asyncio.sleep(0)
        log.gate.set()
        assert [await first, *await asyncio.gather(*rest)] == list(range(21))
        assert log.batches == [[b"first"], [b"%d" % n for n in range(20)]]

    run(scenario)


def test_one_after_the_other_nobody_waits_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailing, "PACE", 1e9)
    monkeypatch.setattr(mailing, "PACE_S_MAX", 3_600.0)  # whoever waited would wait for an hour

    async def scenario(log: Log) -> None:
        to = log.mailing()
        for n in range(50):
            assert await put(to, b"x") == n

    run(scenario)


def test_a_message_that_is_refused_costs_nobody_else() -> None:
    async def scenario(log: Log) -> None:
        to = log.mailing()
        texts = [b"bad" if n in (3, 4) else b"%d" % n for n in range(9)]
        results = await asyncio.gather(*[put(to, text) for text in texts], return_exceptions=True)
        assert [type(each) for each in results] == [InvalidRecord if text == b"bad" else int for text in texts]
        assert [value for batch in log.batches for value in batch] == [text for text in texts if text != b"bad"]
        assert len(log.producers) < 2 * len(texts)

    run(scenario)


def test_a_batch_is_no_larger_than_it_should_be() -> None:
    async def scenario(log: Log) -> None:
        to = log.mailing()
        await asyncio.gather(*[put(to, b"x" * 200_000) for _ in range(6)])
        assert [len(batch) for batch in log.batches] == [2, 2, 2]

    run(scenario)


def test_batches_are_those_of_one_producer_in_sequence() -> None:
    async def scenario(log: Log) -> None:
        to = log.mailing()
        await asyncio.gather(put(to, b"a"), put(to, b"b"))
        await put(to, b"c")
        assert log.producers == [(1, 0), (1, 2)]

    run(scenario)


def test_after_an_error_the_next_batch_is_another_producers() -> None:
    async def scenario(log: Log) -> None:
        to = log.mailing()
        await put(to, b"a")
        log.errors = [RequestTimedOut("who knows")]
        with pytest.raises(RequestTimedOut):
            await put(to, b"b")
        assert await put(to, b"c") == 1
        assert log.producers == [(1, 0), (1, 1), (2, 0)]

    run(scenario)


def test_a_producer_that_was_forgotten_is_replaced_without_a_word() -> None:
    async def scenario(log: Log) -> None:
        to = log.mailing()
        await put(to, b"a")
        log.errors = [OutOfOrderSequence("nobody knows you")]
        assert await put(to, b"b") == 1
        assert log.producers[-1] == (2, 0)

    run(scenario)


def test_too_large_and_too_many_are_refused() -> None:
    async def scenario(log: Log) -> None:
        to = log.mailing()
        with pytest.raises(BatchTooLarge):
            put(to, b"x" * 2_000_000)
        log.gate.clear()
        waiting = [put(to, b"x" * 1_000_000) for _ in range(60)]
        with pytest.raises(TooBusy, match="wait"):
            waiting += [put(to, b"x" * 1_000_000) for _ in range(20)]
        log.gate.set()
        await asyncio.gather(*waiting)

    run(scenario)


def test_who_waits_hears_that_it_is_over() -> None:
    async def scenario(log: Log) -> None:
        log.gate.clear()
        to = log.mailing()
        under_way = put(to, b"a")
        await asyncio.sleep(0.01)
        waiting = put(to, b"b")
        to.close(NotLeader("gone"))
        with pytest.raises(NotLeader):
            await waiting
        with pytest.raises(RequestTimedOut):
            await under_way

    run(scenario)


class Sender:
    def __init__(self) -> None:
        self.told: list[object] = []

    def kept(self, offset: int) -> None:
        self.told.append(offset)

    def failed(self, error: RunnelError) -> None:
        self.told.append(type(error))


def test_each_sender_is_told_once_also_when_the_end_comes_between_the_halves_of_a_batch() -> None:
    async def scenario(log: Log) -> None:
        to, senders = log.mailing(), [Sender() for _ in range(4)]
        for sender, text in zip(senders, (b"a", b"b", b"bad", b"c"), strict=True):
            to.post(b"k", text, (), 1, sender)
        while not log.batches:
            await asyncio.sleep(0)
        log.gate.clear()  # the first half is kept, the second is on its way
        to.close(NotLeader("it is gone"))
        await asyncio.sleep(0.01)
        assert senders[0].told == [0]
        assert [len(sender.told) for sender in senders] == [1, 1, 1, 1]

    run(scenario)


def test_who_comes_after_the_end_hears_why() -> None:
    async def scenario(log: Log) -> None:
        to = log.mailing()
        to.close(NotLeader("it is gone"))
        with pytest.raises(NotLeader):
            put(to, b"a")

    run(scenario)


def test_nobody_waits_for_company_when_a_batch_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailing, "BATCH_BYTES", 10_000)
    monkeypatch.setattr(mailing, "PACE", 60.0)  # beyond the patience of this test
    monkeypatch.setattr(mailing, "PACE_S_MAX", 60.0)

    async def scenario(log: Log) -> None:
        to = log.mailing()
        first = [put(to, b"x" * 400) for _ in range(50)]  # as many as fit into some batches, and a rest
        while len(log.batches) < 2:
            await asyncio.sleep(0)
        rest = next(place for place in first if not place.done())
        await asyncio.sleep(0.01)
        assert not rest.done(), "what does not fill a batch lets more come"
        for _ in range(20):
            put(to, b"y" * 400)
        await rest

    run(scenario)
