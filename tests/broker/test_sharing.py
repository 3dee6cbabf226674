"""Share fetches: bounds over partitions, who waits, and what becomes of a lease whose client has gone."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

from runnel.broker.bells import Bells
from runnel.broker.deliveries import Deliveries
from runnel.broker.fetch import Waits
from runnel.broker.hauls import Lot, Want
from runnel.broker.sharing import PARTITION_BYTES_MAX, Limits, Share, ShareFetchAsked, Sharing
from runnel.model.errors import NotLeader, RunnelError, StorageFailed
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.queue_config import DEFAULTS
from runnel.queues.values import Granted

KEYS = [PartitionKey(TopicId(uuid.UUID(int=1)), number) for number in range(3)]
LONG_MS = 60_000


class Standing:
    """As much of a shard as is looked at."""

    def __init__(self) -> None:
        self.loaded = True


class Outlet:
    """One partition: so many messages of 10 bytes."""

    def __init__(self, key: PartitionKey, bells: Bells, messages: int = 0) -> None:
        self.bell = f"g/{key}"
        self.shard = Standing()
        self.messages = messages
        self.taken = 0
        self.wants: list[Want] = []
        self.released: list[tuple[str, bool]] = []
        self.unsent: list[tuple[str, Granted]] = []
        self.error: RunnelError | None = None
        self.before_answer: Callable[[], Awaitable[None]] | None = None
        self._bells = bells

    async def lease_batches(self, want: Want) -> Lot:
        self.wants.append(want)
        if self.error is not None:
            raise self.error
        count = min(want.messages_max, self.messages)
        first, self.taken = self.taken, self.taken + count
        self.messages -= count
        if self.before_answer is not None:
            await self.before_answer()
        return Lot(bytes(10 * count), [Granted(first, first + count - 1, 1)]) if count else Lot()

    def has_more(self, owner: str = "") -> bool:
        return self.messages > 0

    def gone(self, owner: str, *, untouched: bool = False) -> None:
        self.released.append((owner, untouched))

    def take_back(self, owner: str, grants: Sequence[Granted]) -> None:
        self.unsent += [(owner, grant) for grant in grants]

    def receive(self, count: int) -> None:
        self.messages += count
        self._bells.ring(self.bell)


class Room:
    """Three partitions, of which the first ones are led here."""

    def __init__(self, led: int = 3, bytes_max: int = 1 << 40) -> None:
        self.bells = Bells()
        self.outlets = {key: Outlet(key, self.bells) for key in KEYS[:led]}
        self.sharing = Sharing(cast(Deliveries, self), lambda group_id: DEFAULTS, bytes_max)

    def find(self, queue: str, key: PartitionKey) -> Outlet:
        if key not in self.outlets:
            raise NotLeader("elsewhere")
        return self.outlets[key]

    def of(self, queue: str) -> Mapping[PartitionKey, Outlet]:
        return self.outlets

    def fetch(
        self, messages_max: int = 100, bytes_max: int = 1_000, wait_ms: int = 0, waits: Waits | None = None,
        keys: list[PartitionKey] = KEYS, owner: str = "m",
    ) -> Coroutine[Any, Any, dict[PartitionKey, Share]]:  # fmt: skip
        limits = Limits(messages_max, bytes_max, wait_ms)
        return self.sharing.fetch(ShareFetchAsked("g", owner, limits, (Waits(), waits or Waits())), keys)


def counts(shares: dict[PartitionKey, Share]) -> dict[int, int]:
    return {key.number: sum(last - first + 1 for first, last, _ in share.grants) for key, share in shares.items()}


def test_messages_and_bytes_are_bounded_over_all_partitions() -> None:
    async def scenario() -> None:
        room = Room()
        for outlet in room.outlets.values():
            outlet.messages = 50
        assert counts(await room.fetch(messages_max=70)) == {0: 50, 1: 20}
        assert counts(await room.fetch(bytes_max=300)) == {1: 30}
        assert [want.bytes_max for want in room.outlets[KEYS[1]].wants] == [500, 300]
        assert counts(await room.fetch(messages_max=5, bytes_max=0)) == {2: 5}  # the first batch, whatever its size
        await room.fetch(bytes_max=1 << 40)
        assert room.outlets[KEYS[2]].wants[-1].bytes_max == PARTITION_BYTES_MAX
        assert all(want.bound for outlet in room.outlets.values() for want in outlet.wants)

    asyncio.run(scenario())


def test_only_the_first_batch_may_be_larger_than_asked_for_and_the_broker_has_a_bound_of_its_own() -> None:
    async def scenario() -> None:
        room = Room(bytes_max=500)
        room.outlets[KEYS[1]].messages = room.outlets[KEYS[2]].messages = 10
        assert counts(await room.fetch(bytes_max=1 << 40)) == {1: 10, 2: 10}
        wants = [(want.bytes_max, want.one) for outlet in room.outlets.values() for want in outlet.wants]
        assert wants == [(500, True), (500, True), (400, False)]

    asyncio.run(scenario())


def test_an_error_in_one_partition_costs_the_others_nothing() -> None:
    async def scenario() -> None:
        room = Room(led=2)
        room.outlets[KEYS[0]].error = StorageFailed("full")
        room.outlets[KEYS[1]].messages = 3
        shares = await room.fetch(wait_ms=LONG_MS)
        assert isinstance(shares[KEYS[0]].error, StorageFailed)
        assert isinstance(shares[KEYS[2]].error, NotLeader)
        assert counts(shares) == {0: 0, 1: 3, 2: 0}

    asyncio.run(scenario())


def test_what_is_being_read_keeps_nobody_waiting_who_has_got_something() -> None:
    async def scenario() -> None:
        room = Room()
        room.outlets[KEYS[0]].shard.loaded = False
        room.outlets[KEYS[0]].messages = room.outlets[KEYS[2]].messages = 1
        assert counts(await room.fetch()) == {2: 1}
        assert counts(await room.fetch()) == {0: 1}

    asyncio.run(scenario())


def test_a_lease_whose_client_has_gone_is_ended_and_not_counted() -> None:
    async def scenario() -> None:
        room, waits = Room(), Waits()
        for outlet in room.outlets.values():
            outlet.messages = 1

        async def hang_up() -> None:
            waits.end()

        room.outlets[KEYS[1]].before_answer = hang_up
        assert await room.fetch(waits=waits) == {}
        assert [room.outlets[key].unsent for key in KEYS] == [[("m", Granted(0, 0, 1))], [("m", Granted(0, 0, 1))], []]
        assert room.outlets[KEYS[2]].wants == []
        assert not any(outlet.released for outlet in room.outlets.values()), "the member may go on elsewhere"

    asyncio.run(scenario())


def test_who_waits_is_woken_by_its_own_partitions_alone() -> None:
    async def scenario() -> None:
        room = Room()
        waiting = asyncio.ensure_future(room.fetch(wait_ms=LONG_MS, keys=KEYS[:2]))
        await asyncio.sleep(0)
        room.outlets[KEYS[2]].receive(1)
        await asyncio.sleep(0)
        assert not waiting.done()
        room.outlets[KEYS[1]].receive(1)
        assert counts(await waiting) == {1: 1}
        assert len(room.bells) == 0

    asyncio.run(scenario())


def test_a_ring_is_passed_on_if_there_is_more() -> None:
    async def scenario() -> None:
        room = Room()
        both = [asyncio.ensure_future(room.fetch(messages_max=1, wait_ms=LONG_MS, owner=owner)) for owner in ("a", "b")]
        await asyncio.sleep(0)
        room.outlets[KEYS[0]].receive(2)  # one ring
        assert [counts(shares) for shares in await asyncio.gather(*both)] == [{0: 1}, {0: 1}]

    asyncio.run(scenario())


def test_a_ring_that_woke_a_client_that_has_gone_is_passed_on() -> None:
    async def scenario() -> None:
        room, waits = Room(), Waits()
        gone = asyncio.ensure_future(room.fetch(wait_ms=LONG_MS, waits=waits, owner="gone"))
        await asyncio.sleep(0)
        here = asyncio.ensure_future(room.fetch(wait_ms=LONG_MS, owner="here"))
        await asyncio.sleep(0)
        room.outlets[KEYS[0]].receive(1)
        waits.end()  # before it could look
        assert await gone == {}
        assert counts(await here) == {0: 1}

    asyncio.run(scenario())


def test_everybody_is_answered_when_the_broker_stops() -> None:
    async def scenario() -> None:
        room = Room()
        waiting = asyncio.ensure_future(room.fetch(wait_ms=LONG_MS))
        await asyncio.sleep(0)
        room.sharing.close()
        assert await waiting == {}
        assert await room.fetch(wait_ms=LONG_MS) == {}

    asyncio.run(scenario())


def test_only_what_is_open_is_released_when_a_session_ends() -> None:
    async def scenario() -> None:
        room = Room(led=1)
        room.sharing.release("g", KEYS, "m", closed=True)
        room.sharing.release("g", KEYS, "n", closed=False)
        assert room.outlets[KEYS[0]].released == [("m", True), ("n", False)]

    asyncio.run(scenario())
