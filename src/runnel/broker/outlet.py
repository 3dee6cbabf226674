"""One queue's outlet on one partition that is led here: its delivery, performed.

Rule 1: the state machine says what it wants to be offered; it is read, offered and leased in one step, so that nobody
        else comes in between. Where the disk has to be asked, the question is asked anew afterwards.
Rule 2: a message leaves the broker when its lease is kept, never before.
Rule 3: who has a filter of its own chooses: see `choosing`. If what passes lies too far behind, it is told so.
Rule 4: whoever waits is woken by the partition's growth and by what the machine makes available; never by a timer
        of its own.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from runnel.broker.batches import Batches
from runnel.broker.bells import Bells
from runnel.broker.choosing import Looked, Search
from runnel.broker.hauls import Haul, Lot, Refusals, Want, haul_of
from runnel.broker.journal import Journal
from runnel.broker.leaving import Leaver
from runnel.broker.messages import Messages, Stretch
from runnel.broker.offers import Passes, Rules, offers_of
from runnel.broker.shard import Shard
from runnel.model.errors import LeaderNotAvailable, OffsetOutOfRange, WindowFull
from runnel.model.queue_config import Isolation, QueueConfig, Start
from runnel.model.seams import Clock, Rng
from runnel.queues.delivery import Delivery
from runnel.queues.values import (
    Available,
    Describe,
    Described,
    Granted,
    Lease,
    Leased,
    Leave,
    Offered,
    OwnerGone,
    Settle,
    Settled,
    Span,
    Standing,
    Target,
    Unsent,
    View,
)
from runnel.record.records import Record
from runnel.replica.partition import Partition

JITTER: Final = 1 << 31  # steps of chance
OPENING_S: Final = 10.0  # a queue that is used for the first time here is read first
HELD_MAX: Final = 8  # stretches that are read for one lease
LOOKS_MAX: Final = 64
LOOK_S: Final = 1.0  # at what does not pass, before others have their turn


NONE: Final = Leased((), 0, 0)


class Parts(NamedTuple):
    """What all outlets of a broker share."""

    messages: Messages
    bells: Bells
    clock: Clock
    rng: Rng


class Outlet:
    """Performs what the delivery of one queue over one partition decides."""

    def __init__(
        self, queue: str, partition: Partition, journal: Journal, config: QueueConfig, rules: Rules,
        parts: Parts, leaver: Leaver, made: int = 0,
    ) -> None:  # fmt: skip
        self.queue = queue
        self.made = made  # the number of the queue; 0: a share group's
        self.bell = bell_of(queue, partition)  # beside the queue's: for those who want messages of this partition alone
        self.partition = partition
        self.config = config
        self.rules = rules
        self._parts = parts
        self._leaver = leaver
        self._watching = False
        self._chance = parts.rng.below(JITTER)
        self._targets_seen: tuple[int, int] | None = None
        self._targets: tuple[Target | None, Target | None] = (None, None)
        self._looked = Looked()
        self._untouched = 0  # how often something came back as if nobody had had it
        self.refusals = Refusals()
        self._begin: int | None = None  # if the queue begins by time, and nothing was kept of it
        self.defined = False  # as a queue; else it is a share group's
        self.used_ms = parts.clock.monotonic_ms()
        self.shard: Shard[View] = Shard(journal, Delivery, self.view, parts.clock, self._carry_out)

    def open(self) -> None:
        self.shard.open()

    def close(self) -> None:
        self.unwatch()
        self.shard.close()
        self._leaver.close()
        self._parts.bells.ring_all(self.bell)  # what they wait for will not come from here

    def begin_at_start(self) -> None:
        """Nothing was ever kept here: begin with the first message, wherever the queue begins elsewhere."""
        self.config = replace(self.config, start=Start.EARLIEST)

    async def begin_at(self, time_ms: int) -> None:
        """Nothing was ever kept here: begin with the first message that is not older than this."""
        found = await self.partition.log.offset_by_time(max(time_ms, 0))
        self._begin = self.partition.log.end_offset if found is None else found[0]

    def reconfigure(self, config: QueueConfig, rules: Rules) -> None:
        self._targets_seen = None
        self.config = config
        self.rules = rules

    # --- the machine

    def view(self) -> View:
        partition, version = self.partition, self._leaver.targets_version
        if version != self._targets_seen:
            self._targets_seen, self._targets = version, self._leaver.targets()
        committed = (
            self.config.isolation is Isolation.COMMITTED or not self.rules.plain
        )  # those are decoded, see Messages
        end = partition.last_stable_offset if committed else partition.high_watermark
        # Chance is drawn once for each outlet: from there on numbers that look like it do as well, and cost nothing.
        self._chance = (self._chance * 1_103_515_245 + 12_345) % JITTER
        return View(
            self.config, partition.log.start_offset, end, self._chance / JITTER, *self._targets, self.made, self._begin
        )  # fmt: skip

    @property
    def machine(self) -> Delivery:
        """The state machine, once it has been read."""
        machine = self.shard.machine
        assert isinstance(machine, Delivery)
        return machine

    async def opened(self, timeout_s: float) -> bool:
        """Wait until the state has been read, for so long; returns whether it has."""
        if self.shard.loaded:
            return True
        await asyncio.sleep(0)  # a request that was answered at once until now goes on in a task: timeouts need one
        try:
            async with asyncio.timeout(timeout_s):
                await self.shard.opened()
        except TimeoutError:
            return False
        return True

    async def _ready(self) -> None:
        """The same, and no longer than anybody would wait for an answer."""
        if not self.shard.loaded and not await self.opened(OPENING_S):
            raise LeaderNotAvailable(
                f"what queue {self.queue!r} knows of {self.partition.name} is being read: try again"
            )

    async def ask(self, verb: str, request: Any) -> Any:
        """Put a request to the state machine, once it has been read."""
        self.used()
        await self._ready()
        return await self.shard.ask(verb, request)

    def used(self) -> None:
        """Somebody needs it: it is not closed for a while."""
        self.used_ms = self._parts.clock.monotonic_ms()

    def tell(self, verb: str, news: Any) -> None:
        self.shard.tell(verb, news)

    async def settle(self, request: Settle) -> Settled:
        result: Settled = await self.ask("settle", request)
        return result

    async def describe(self) -> Described:
        result: Described = await self.ask("describe", Describe())
        return result

    def gone(self, owner: str, *, untouched: bool = False) -> None:
        """A connection ended: its leases end. `untouched`: in order, and nothing was begun of what it still has."""
        self.tell("release_owner", OwnerGone(owner, untouched))
        self._untouched += untouched

    def take_back(self, owner: str, grants: Sequence[Granted]) -> None:
        """Messages that were leased did not leave: nobody is there to have them."""
        if grants:
            self.tell("take_back", Unsent(owner, grants))
            self._untouched += 1

    def standing(self, offset: int) -> Standing:
        return self.machine.standing(offset)

    def has_more(self, owner: str = "") -> bool:
        """Whether there may be something to lease now."""
        return self.shard.loaded and bool(self._wants(owner, 1))

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be missed if this outlet were closed, and opened again when it is used."""
        if not self.shard.loaded or not self._leaver.is_idle:
            return False
        return self.machine.next_deadline_ms() is None and not self.machine.is_leased

    def _wants(self, owner: str, messages_max: int, chosen_from: tuple[int, int] | None = None) -> list[Span]:
        return self.machine.wants(owner, self.view(), self._parts.clock.monotonic_ms(), messages_max, chosen_from)

    def _carry_out(self, order: object) -> None:
        match order:
            case Available():
                self._ring()
            case Leave(leaving):
                self._leaver.leave(leaving)
            case _:
                raise AssertionError(f"a delivery ordered {order!r}")

    # --- leasing

    async def lease(self, want: Want) -> Haul:
        """Lease what there is now, message by message. Who waits is woken to go on, where not all was looked at."""
        if want.passes is not None:
            return await self._choose(want, want.passes)
        held: list[Stretch] = []
        loop = asyncio.get_running_loop()
        begun = 0.0
        while True:
            await self._ready()
            spans = self._wants(want.owner, want.messages_max)
            found, missing = self._gather(spans, want, held)
            if missing is not None and len(held) < HELD_MAX:
                stretch = await self._read(missing)
                if stretch.end > missing:
                    held.append(stretch)
                    continue
            if not found:
                return Haul(())
            leased = await self._lease(want, [offer for offer, _ in found])
            if leased.grants:
                return haul_of(leased, [record for _, record in found if record is not None])
            held.clear()  # none passed: look further
            begun = begun or loop.time()
            if loop.time() - begun > LOOK_S:
                self._ring()
                return Haul(())

    async def _choose(self, want: Want, passes: Passes) -> Haul:
        """Lease what passes a receiver's filter."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + LOOK_S
        search = Search(self.rules, passes, want.messages_max, want.bytes_max)
        while True:
            await self._ready()
            held = self.machine, self.machine.generation, self.rules, self._untouched
            looked = 0 if self.rules.keyed else self._looked.end(want.filter, held)
            spans = self._wants(want.owner, want.messages_max, (search.at, looked))
            if not spans:
                self._check_crowd()
                return Haul(())
            if not search.holds(spans[0].first):
                search.stretch = self._at(spans[0].first, ()) or await self._read(spans[0].first)
                if not search.holds(spans[0].first):
                    return Haul(())
                continue
            found = search.look(spans, self.machine.next_new)
            leased = await self._lease(want, [offer for offer, _ in found]) if found else NONE
            self._looked.note(want.filter, max(looked, search.first_left(leased.grants)))
            if leased.grants:
                return haul_of(leased, [record for _, record in found if record is not None])
            self._check_reach([record.offset for _, record in found if record is not None])
            if loop.time() > end_s:
                self._ring()
                return Haul(())
            await asyncio.sleep(0)

    def _check_reach(self, passed: Sequence[int]) -> None:
        """Nothing could be had of what passes: say so if that is because of what lies before it."""
        if far := [offset for offset in passed if self.machine.standing(offset).state == "new"]:
            self.refusals.looks += 1
            raise WindowFull(
                f"what passes the filter lies at offset {far[0]} of {self.partition.name}, behind more messages than "
                f"queue {self.queue!r} can leave out: receive those too, or raise window.max"
            )

    def _check_crowd(self) -> None:
        """The same where all that the window has room for was looked at."""
        if self.machine.is_crowded(self.view()):
            self.refusals.looks += 1
            raise WindowFull(
                f"queue {self.queue!r} keeps the order of keys, and has looked at as many messages of "
                f"{self.partition.name} as its window holds: receive those that do not pass, or raise window.max"
            )

    async def _lease(self, want: Want, offers: Sequence[Offered]) -> Leased:
        request = Lease(want.owner, offers, want.messages_max, want.bytes_max, want.lease_ms, want.bound)
        result: Leased = await self.ask("lease", request)
        return result

    def _gather(
        self, spans: Sequence[Span], want: Want, held: Sequence[Stretch]
    ) -> tuple[list[tuple[Offered, Record | None]], int | None]:
        """What is in memory of some spans, up to what the receiver can take; and what has to be read to go on."""
        found: list[tuple[Offered, Record | None]] = []
        size = messages = 0
        for span in spans:
            at = span.first
            while at <= span.last:
                stretch = self._at(at, held)
                if stretch is None:
                    return found, at
                for offer, record in offers_of(stretch, Span(at, span.last), self.rules):
                    found.append((offer, record))
                    if offer.passes:
                        messages += 1
                        size += offer.size
                    if messages >= want.messages_max or size >= want.bytes_max:
                        return found, None
                at = stretch.end
        return found, None

    def _at(self, offset: int, held: Sequence[Stretch]) -> Stretch | None:
        for stretch in held:
            if stretch.first <= offset < stretch.end:
                return stretch
        return self._parts.messages.cached(self.partition, offset)

    async def _read(self, offset: int) -> Stretch:
        try:
            return await self._parts.messages.read(self.partition, offset)
        except OffsetOutOfRange:
            return Stretch(offset, offset + 1, ())  # retention took it: the machine sees that too

    async def lease_batches(self, want: Want) -> Lot:
        """Lease what there is now, as batches of the log."""
        batches = self._batches()
        if not self.rules.plain:
            haul = await self.lease(want)
            grants = [Granted(taken.record.offset, taken.record.offset, taken.attempt) for taken in haul.messages]
            count = await batches.fetch(grants, want.bytes_max, one=want.one)
            self.take_back(want.owner, grants[count:])
            return Lot(batches.cut(grants[:count]), grants[:count], haul.until_ms)
        for _ in range(LOOKS_MAX):
            await self._ready()
            spans = self._wants(want.owner, self.config.leases_max if want.whole_batches else want.messages_max)
            await batches.gather(spans, want.messages_max, want.bytes_max, one=want.one)
            if not batches.offers:
                return Lot()
            messages = max(want.messages_max, batches.messages) if want.whole_batches else want.messages_max
            # Bytes are spent by whole batches, and those were bounded when they were read.
            able = want._replace(messages_max=messages, bytes_max=max(want.bytes_max, batches.bytes))
            leased = await self._lease(able, batches.offers)
            if leased.grants:
                return Lot(batches.cut(leased.grants), leased.grants, leased.until_ms)
            if batches.full:
                return Lot()  # what there is has no room
            batches = self._batches()
        self._ring()  # whoever waits goes on, where not all was looked at
        return Lot()

    def _batches(self) -> Batches:
        return Batches(self.partition, committed=self.config.isolation is Isolation.COMMITTED)

    # --- waiting

    def watch(self) -> None:
        """Somebody waits for messages of the queue: ring when there are more."""
        if not self._watching:
            self._watching = True
            self.partition.watch(self, committed_only=self.config.isolation is Isolation.COMMITTED)

    def unwatch(self) -> None:
        if self._watching:
            self._watching = False
            self.partition.unwatch(self)

    def grown(self, bytes_added: int) -> None:
        """Told by the partition."""
        self._ring()

    def _ring(self) -> None:
        self._parts.bells.ring(self.queue)
        self._parts.bells.ring(self.bell)


def bell_of(queue: str, partition: Partition) -> str:
    return f"{queue}\0{partition.key}"
