"""Leaders and their keeper on a network that loses and delays: there is one truth, the last leader's.

A call may arrive late, after all that was asked since; but none arrives twice: nobody sends a write again as it was.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest

from runnel.broker.keepers import KeeperJournal, Keepers
from runnel.client.errors import BrokerUnreachable
from runnel.model.errors import FencedEpoch, NotLeader, RetriableError
from runnel.model.ids import Epoch, Millis, PartitionKey, TopicId
from runnel.model.internal_calls import KeeperOpen, KeeperWrite, Kept
from runnel.model.step import Step
from runnel.queues.keeper import KeeperShard
from runnel.replica.partition import Partition

R = TypeVar("R")
KEY = PartitionKey(TopicId(UUID(int=7)), 0)
TRIES = 3
NOW = Millis(0)


class Network:
    """The keeper, and the way to it: what becomes of each call is drawn. It stands in for `Keepers`."""

    def __init__(self, draw: Callable[[], str]) -> None:
        self._draw = draw
        self.machine = KeeperShard()
        self.log: dict[bytes, bytes] = {}
        self.late: list[tuple[str, KeeperOpen | KeeperWrite]] = []

    def apply(self, verb: str, request: KeeperOpen | KeeperWrite) -> Any:
        step: Step = getattr(self.machine, verb)(request, "ticket", (), NOW, NOW)
        for key, value in step.records:
            self.log.pop(key, None)
            if value is not None:
                self.log[key] = value
        [reply] = step.replies
        return reply.result

    async def _call(self, verb: str, request: KeeperOpen | KeeperWrite) -> Any:
        fate = self._draw()
        if fate == "lost":
            raise BrokerUnreachable("it never arrived")
        if fate == "late":
            self.late.append((verb, request))
            raise BrokerUnreachable("it is still on its way")
        result = self.apply(verb, request)
        if fate == "unheard":
            raise BrokerUnreachable("the answer never arrived")
        if isinstance(result, Exception):
            raise result
        return result

    async def open(self, request: KeeperOpen) -> Kept:
        kept: Kept = await self._call("open", request)
        return kept

    async def write(self, request: KeeperWrite) -> None:
        await self._call("write", request)

    async def patiently(self, work: Callable[[], Awaitable[R]]) -> R:
        for _ in range(TRIES):
            try:
                return await work()
            except FencedEpoch:
                raise
            except RetriableError as error:
                last = error
        raise last

    def restart(self) -> None:
        """The keeper fails over: its successor has what was in the log."""
        self.machine = KeeperShard()
        for key, value in self.log.items():
            self.machine.replay(key, value)

    @property
    def value(self) -> bytes | None:
        [owner] = self.machine._owners.values() or [None]
        return None if owner is None else owner.records.get(b"k")


class Leader:
    """A leader of the partition in one epoch. It knows what the keeper has, unless its last word was never answered."""

    def __init__(self, network: Network, epoch: int) -> None:
        self.partition = SimpleNamespace(key=KEY, leader_epoch=Epoch(epoch), is_leader=True)
        self.journal = KeeperJournal(cast(Keepers, network), "q", cast(Partition, self.partition))
        self.value: bytes | None = None
        self.certain = False
        self.fenced = False

    async def step(self, value: bytes) -> None:
        try:
            if self.certain:
                await self.journal.append([(b"k", value)])
                self.value = value
            else:
                await self._read()
        except FencedEpoch:
            self.fenced, self.certain = True, False
        except RetriableError:
            self.certain = False  # as a shard: thrown away, and read again

    async def _read(self) -> None:
        found: dict[bytes, bytes | None] = {}
        await self.journal.read(found.__setitem__)
        self.value, self.certain = found.get(b"k"), True


FATES = ("well",) * 4 + ("lost", "late", "unheard")
MOVES = ("lead",) * 6 + ("succeed", "arrive", "arrive", "restart")
SEEDS, STEPS = 1_000, 50


async def _run(chance: Random) -> None:
    network = Network(lambda: chance.choice(FATES))
    leaders = [Leader(network, 1)]
    for number in range(STEPS):
        match chance.choice(MOVES):
            case "lead":  # also those who do not know that they were replaced go on
                leader = chance.choice(leaders[-3:])
                if not leader.fenced:
                    await leader.step(b"%d" % number)
            case "succeed":
                leaders.append(Leader(network, len(leaders) + 1))
            case "arrive" if network.late:
                network.apply(*network.late.pop(chance.randrange(len(network.late))))
            case "restart":
                network.restart()
        _check(leaders, network)


def test_there_is_one_truth_and_the_last_leader_has_it() -> None:
    async def main() -> None:
        for seed in range(SEEDS):
            try:
                await _run(Random(seed))
            except AssertionError as error:
                error.add_note(f"seed {seed}")
                raise

    asyncio.run(main())


def _check(leaders: list[Leader], network: Network) -> None:
    """What the last leader that was answered knows is what is kept; who was fenced, was fenced by a later one."""
    opened = [leader for leader in leaders if leader.certain or leader.fenced]
    if opened and opened[-1].certain and not _opened_above(network, opened[-1]):
        assert network.value == opened[-1].value
    assert all(_opened_above(network, leader) for leader in leaders if leader.fenced)


def _opened_above(network: Network, leader: Leader) -> bool:
    """Whether the keeper was opened in a higher epoch, by one who was never answered."""
    [owner] = network.machine._owners.values() or [None]
    return owner is not None and owner.holder is not None and owner.holder.epoch > leader.journal.epoch


def test_a_leader_that_lost_its_place_does_not_even_ask() -> None:
    async def main() -> None:
        network = Network(lambda: "well")
        leader = Leader(network, 1)
        await leader.step(b"")
        await leader.step(b"1")
        leader.partition.is_leader = False
        with pytest.raises(FencedEpoch):
            await leader.journal.append([(b"k", b"2")])
        assert network.value == b"1"
        assert leader.journal.gone is NotLeader

    asyncio.run(main())
