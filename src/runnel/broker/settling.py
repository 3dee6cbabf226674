"""Settling and extending leases, on any broker: each receipt is judged by the leader of its partition.

Rule 1: one receipt's error costs the others nothing.
Rule 2: what a leader could not be asked, or did not answer, is asked again, for as long as there is time: the same
        verdict twice does what it does once.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from runnel.broker import queue_calls
from runnel.broker.calls import Calls, failure_of
from runnel.broker.deliveries import Deliveries
from runnel.broker.routing import ELSEWHERE, PAUSE_MS
from runnel.broker.sources import Sources
from runnel.client.outcome import error_of_failure
from runnel.cluster.image import NO_LEADER, Image
from runnel.model.calls import Delivered, Extend, Failure, Settle, Settled, Settlement, Verb
from runnel.model.errors import LeaderNotAvailable, LeaseLost, RequestTimedOut, RetriableError, RunnelError, as_value
from runnel.model.ids import BrokerId, PartitionKey
from runnel.model.seams import Rng
from runnel.queues import values
from runnel.queues.receipts import Receipt, read
from runnel.queues.values import Outcome, Verdict

TIMEOUT_S: Final = 30.0
CALL_MS: Final = 15_000
AGAIN: Final = (*ELSEWHERE, RequestTimedOut)
OUTCOMES: Final = {"accept": Outcome.ACCEPT, "release": Outcome.RELEASE, "reject": Outcome.REJECT}

Q = TypeVar("Q", Settle, Extend)
Result = RunnelError | None


class Settling:
    """The verbs."""

    def __init__(
        self, me: BrokerId, deliveries: Deliveries, sources: Sources, calls: Calls, image: Callable[[], Image], rng: Rng
    ) -> None:
        self._me = me
        self._deliveries = deliveries
        self._sources = sources
        self._calls = calls
        self._image = image
        self._rng = rng
        calls.serve(queue_calls.SETTLE, self._settle_here)
        calls.serve(queue_calls.EXTEND, self._extend_here)

    async def settle(self, request: Settle) -> Settled:
        """Say what became of messages; for each receipt None, or why not."""
        self._sources.queue(request.queue)
        receipts = [settlement.receipt for settlement in request.settlements]

        def part(numbers: Sequence[int]) -> Settle:
            return Settle(request.queue, [request.settlements[number] for number in numbers])

        return await self._each(receipts, queue_calls.SETTLE, part, self._settle_here)

    async def extend(self, request: Extend) -> Settled:
        """Lease on; for each receipt None, or why not."""
        self._sources.queue(request.queue)

        def part(numbers: Sequence[int]) -> Extend:
            return Extend(request.queue, [request.receipts[number] for number in numbers], request.lease_ms)

        return await self._each(request.receipts, queue_calls.EXTEND, part, self._extend_here)

    async def give_back(self, queue: str, messages: Sequence[Delivered]) -> None:
        """End leases whose messages nobody got: others can have them at once."""
        await self.settle(Settle(queue, [Settlement(message.receipt, "release", 0) for message in messages]))

    # --- whom to ask

    async def _each(
        self, receipts: Sequence[str], verb: Verb[Q, Settled], part: Callable[[Sequence[int]], Q],
        here: Callable[[Q], Awaitable[Settled]],
    ) -> Settled:  # fmt: skip
        results: list[Result] = [None] * len(receipts)
        todo: list[tuple[int, Receipt]] = []
        for number, text in enumerate(receipts):
            try:
                todo.append((number, read(text)))
            except RunnelError as error:
                results[number] = as_value(error)
        loop = asyncio.get_running_loop()
        end = loop.time() + TIMEOUT_S
        while todo:
            by_leader = self._by_leader(todo, results)
            for numbers, answer in await self._ask_all(by_leader, verb, part, here):
                for number, result in zip(numbers, answer, strict=True):
                    results[number] = result
            todo = [(number, receipt) for number, receipt in todo if isinstance(results[number], AGAIN)]
            if todo and not await self._pause(end):
                break
        return Settled([failure_of(result) for result in results])

    def _by_leader(self, todo: Sequence[tuple[int, Receipt]], results: list[Result]) -> dict[BrokerId, list[int]]:
        by_leader: defaultdict[BrokerId, list[int]] = defaultdict(list)
        image = self._image()
        for number, receipt in todo:
            topic = image.topics.get(receipt.key.topic_id)
            results[number] = None
            if topic is None or not 0 <= receipt.key.number < len(topic.partitions):
                results[number] = LeaseLost("the topic of this receipt does not exist any more: there is nothing to do")
            elif (leader := topic.partitions[receipt.key.number].leader) == NO_LEADER:
                results[number] = LeaderNotAvailable(f"{topic.name}-{receipt.key.number} has no leader: try again")
            else:
                by_leader[leader].append(number)
        return by_leader

    async def _ask_all(
        self, by_leader: dict[BrokerId, list[int]], verb: Verb[Q, Settled], part: Callable[[Sequence[int]], Q],
        here: Callable[[Q], Awaitable[Settled]],
    ) -> list[tuple[list[int], list[Result]]]:  # fmt: skip
        if list(by_leader) == [self._me]:  # the common case needs no task
            numbers = by_leader[self._me]
            return [(numbers, _results(await here(part(numbers))))]
        await asyncio.sleep(0)  # a request that was answered at once until now goes on in a task: timeouts need one
        asked = [self._ask(leader, verb, part(numbers), len(numbers)) for leader, numbers in by_leader.items()]
        return list(zip(by_leader.values(), await asyncio.gather(*asked), strict=True))

    async def _ask(self, leader: BrokerId, verb: Verb[Q, Settled], request: Q, count: int) -> list[Result]:
        try:
            return _results(await self._calls.ask(leader, verb, request, timeout_ms=CALL_MS))
        except RunnelError as error:
            return [as_value(error)] * count

    async def _pause(self, end: float) -> bool:
        pause_s = (PAUSE_MS + self._rng.below(PAUSE_MS)) / 1000
        if asyncio.get_running_loop().time() + pause_s >= end:
            return False
        await asyncio.sleep(pause_s)
        return True

    # --- as the leader

    async def _settle_here(self, request: Settle) -> Settled:
        verdicts = [_verdict(settlement) for settlement in request.settlements]
        return await self._judge(request.queue, verdicts, lambda some: ("settle", values.Settle(some)))

    async def _extend_here(self, request: Extend) -> Settled:
        verdicts = [_verdict(Settlement(receipt, "accept")) for receipt in request.receipts]
        return await self._judge(
            request.queue, verdicts, lambda some: ("extend", values.Extend(some, request.lease_ms))
        )

    async def _judge(
        self, queue: str, verdicts: Sequence[tuple[PartitionKey, Verdict]],
        ask: Callable[[list[Verdict]], tuple[str, object]],
    ) -> Settled:  # fmt: skip
        by_key: defaultdict[PartitionKey, list[int]] = defaultdict(list)
        for number, (key, _) in enumerate(verdicts):
            by_key[key].append(number)
        failures: list[Failure | None] = [None] * len(verdicts)
        known = self._sources.must_know(queue).keys
        for key, numbers in by_key.items():
            if key not in known:
                lost = LeaseLost(
                    f"queue {queue!r} does not deliver what this receipt is of: see which queue it came from"
                )
                for number in numbers:
                    failures[number] = failure_of(lost)
                continue
            try:
                verb, asked = ask([verdicts[number][1] for number in numbers])
                settled: values.Settled = await self._deliveries.find(queue, key).ask(verb, asked)
            except RetriableError as error:
                for number in numbers:
                    failures[number] = failure_of(error)
            else:
                for place, refusal in settled.refused.items():
                    failures[numbers[place]] = failure_of(refusal)
        return Settled(failures)


def _verdict(settlement: Settlement) -> tuple[PartitionKey, Verdict]:
    key, offset, attempt, generation = read(settlement.receipt)
    outcome = OUTCOMES[settlement.outcome]
    return key, Verdict(offset, offset, attempt, generation, outcome, settlement.delay_ms, settlement.reason)


def _results(settled: Settled) -> list[Result]:
    return [error_of_failure(failure) for failure in settled.failures]
