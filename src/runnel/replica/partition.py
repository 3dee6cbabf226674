"""One replica of one partition: its log, its role, and those who wait.

    IDLE --apply--> LEADER    appends, serves readers and followers, knows what is committed
      ^               |
      |  apply        v
      +----------> FOLLOWER   asks its leader, does what `following` decides, serves readers what it knows as committed

Rule 1: `readable` says how far it can be read. That never goes back in a leader epoch.
Rule 2: acks=all is answered when the high watermark has passed the batch, in the leader epoch it was appended in; a
        duplicate waits for its original.
Rule 3: with its leader epoch a leader's promises end: who still waits for them is sent to the next leader, and what a
        coordinator of transactions said counts no more.
Rule 4: the end of a transaction is told when its marker is committed. `ending` says who may write in one.
Rule 5: to a partition of an internal topic its coordinator alone appends, and says so; no transaction writes there.
Rule 6: only a leader says that there is no such offset yet. The log of one that leads no more may be cut while somebody
        reads: who is told "out of range" begins again at the start.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from enum import Enum
from functools import partial
from typing import Final, Protocol, TypeAlias

from runnel.cluster.image import NO_LEADER
from runnel.cluster.image import Partition as PartitionImage
from runnel.log.files import Files
from runnel.log.log import Appended, Log
from runnel.model.errors import (
    InvalidTopicName,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetOutOfRange,
    RunnelError,
)
from runnel.model.ids import NO_EPOCH, NO_OFFSET, BrokerId, Epoch, Millis, Offset, PartitionKey
from runnel.model.limits import BATCH_BYTES_MAX
from runnel.model.seams import Clock, Disk
from runnel.model.topic_config import TopicConfig
from runnel.record.batch import TRANSACTIONAL, BatchHeader, read_header
from runnel.record.control import marker
from runnel.record.records import RECORDS_BYTES_MAX
from runnel.replica.commits import Commits
from runnel.replica.ending import (
    BUMPING,
    AlreadyEnded,
    Ending,
    Guard,
    Guards,
    check_marker,
    check_member,
    ended,
    is_open,
)
from runnel.replica.following import Answer, Append, AskAgain, BeginAt, Cut, Distrust, Question, decide, high_watermark
from runnel.replica.progress import Progress, Proposal
from runnel.replica.readable import Readable
from runnel.replica.readers import ENOUGH
from runnel.replica.refusals import Refusals
from runnel.replica.unreadable import Unreadable

logger = logging.getLogger("runnel.replica")


def _ignore(partition: "Partition") -> None:
    """Nobody wants to know."""


class Role(Enum):
    IDLE = "idle"  # opened, or on the way from one role to another
    LEADER = "leader"
    FOLLOWER = "follower"


class Quota(Protocol):
    """Raises where so many messages more are too many, behind so many that are about to be appended."""

    def __call__(self, messages: int, ahead: int = 0) -> None: ...


Room: TypeAlias = Callable[[int], AbstractAsyncContextManager[None]]  # for so many bytes of records, once there is some
UNPACKED_FACTOR: Final = 16  # what is sent compressed is text: five to ten times as large


def anywhere(_: int) -> AbstractAsyncContextManager[None]:
    return nullcontext()


def _unpacked_max(config: TopicConfig) -> int:
    """Bytes that the records of one batch may be when they are decompressed, for readers of single messages."""
    largest = max(config.max_message_bytes, BATCH_BYTES_MAX)  # what was sent while a topic allowed more, is there still
    return min(UNPACKED_FACTOR * largest, RECORDS_BYTES_MAX)


class Partition(Readable):
    """A replica on this broker."""

    def __init__(
        self, topic: str, key: PartitionKey, config: TopicConfig, me: BrokerId, clock: Clock, internal: bool = False
    ) -> None:
        super().__init__(topic, key)
        self.internal = internal
        self.config = config
        self.looks_inside = config.looks_inside  # asked for every batch
        self.role = Role.IDLE
        self.image: PartitionImage | None = None
        self.leader_epoch = NO_EPOCH
        self.progress: Progress  # of a leader
        self.refusals = Refusals()
        self.unreadable = Unreadable(self.name, _unpacked_max(config))
        self.room: Room = anywhere
        self.quota: Quota | None = None
        self._me = me
        self._clock = clock
        self._commits = Commits(self.name)
        self._guards = Guards()
        self._end_seen = NO_OFFSET
        self._asked_in = NO_EPOCH  # the leader epoch in which a leader was told how far this copy goes
        self._taking = 0  # answers that are being worked off: another leader's may still be
        self._held: asyncio.Future[None] | None = None  # a follower waits until what it got is durable
        self._in_line: list[tuple[asyncio.Future[Appended], int]] = []  # while there is a quota

    @classmethod
    async def open(
        cls, topic: str, key: PartitionKey, path: str, config: TopicConfig, *,
        me: BrokerId, disk: Disk, clock: Clock, on_fatal: Callable[[BaseException], None],
        on_damage: Callable[["Partition"], None] = _ignore, files: Files | None = None, internal: bool = False,
    ) -> "Partition":  # fmt: skip
        """Open the log, recovering it if need be. It has no role yet. `on_damage`: it turned out not to be whole."""
        partition = cls(topic, key, config, me, clock, internal)
        partition._begin_with(
            await Log.open(
                disk, path, config, clock=clock, on_progress=partition._log_moved, on_fatal=on_fatal,
                on_damage=lambda _: on_damage(partition), files=files,
            )
        )  # fmt: skip
        return partition

    async def close(self) -> None:
        """Stop: what waits for the log learns that it will not come."""
        self._step_down(NotLeader(f"{self.name} is closing: send again to its next leader"))
        await self.log.close()

    async def discard(self) -> None:
        """Stop, for what is on the disk is about to be removed: nothing of it is synced first."""
        self._step_down(NotLeader(f"{self.name} is not kept here any more: ask for metadata"))
        await self.log.discard()

    def reconfigure(self, config: TopicConfig) -> None:
        if config != self.config:
            self.config = config
            self.looks_inside = config.looks_inside
            self.unreadable.bytes_max = _unpacked_max(config)
            self.log.reconfigure(config)
            if self.role is Role.LEADER:
                self.progress.minimum = config.min_insync_replicas
                self._replicas_moved()

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_follower(self) -> bool:
        return self.role is Role.FOLLOWER

    @property
    def epoch_start(self) -> Offset:
        """Where the log ended when this leader's epoch began."""
        return self.progress.epoch_start

    @property
    def settled(self) -> bool:
        """Whether a leader knows how far what it found is committed."""
        return self.role is Role.LEADER and self.progress.settled

    # --- roles

    async def apply(self, image: PartitionImage) -> None:
        """Be what the image says; an image that is older than what was applied says nothing."""
        if self.image is not None and image.epoch < self.image.epoch:
            return
        self.image = image
        if image.leader != self._me:
            self._follow(image)
        elif self.role is not Role.LEADER or image.leader_epoch != self.leader_epoch:
            await self._lead(image)
        else:
            self.progress.see(image)
            self._tell_if_overruled()
            self._replicas_moved()

    async def _lead(self, image: PartitionImage) -> None:
        self._step_down(NotLeader(f"{self.name} begins leader epoch {image.leader_epoch}: send again"))
        await self.log.idle()  # what an earlier epoch still had in line belongs before this one
        if self.log.is_lost:
            self.image = None  # nobody can say what it would lead with: it has to be told again
            return
        self.log.distrust_epochs_above(image.leader_epoch)
        self.leader_epoch = image.leader_epoch
        self._reach(min(self.high_watermark, self.log.end_offset))
        self.progress = Progress(
            self._me, image,
            epoch_start=self.log.end_offset, high_watermark=self.high_watermark,
            minimum=self.config.min_insync_replicas, now_ms=self._clock.monotonic_ms(),
        )  # fmt: skip
        self._end_seen = self.log.end_offset
        self.role = Role.LEADER
        self._tell_if_overruled()
        self._log_moved()

    def _tell_if_overruled(self) -> None:
        """Nothing is wrong with any broker then, but with what was written into their files."""
        if self.progress.overruled:
            logger.warning("%s: give all brokers the same one, or set it for the topic", self._lack)

    def _follow(self, image: PartitionImage) -> None:
        if self.role is Role.FOLLOWER and image.leader_epoch == self.leader_epoch:
            return
        self._step_down(
            NotLeader(f"{self.name} is led by broker {image.leader} now: ask for metadata, then send again")
        )
        self.leader_epoch = image.leader_epoch
        self.role = Role.FOLLOWER

    def _step_down(self, error: RunnelError) -> None:
        """Rule 3. Readers are woken too: they ask again, and hear what changed."""
        self.role = Role.IDLE
        self._commits.fail(error)
        self.log.refuse_waiting(error)
        self._guards.void_all(error)
        self._wake_all()
        if self._held is not None and not self._held.done():
            self._held.set_result(None)

    # --- reading

    async def read(
        self, offset: Offset, bytes_max: int, *, replica: bool = False, committed_only: bool = False
    ) -> bytes | memoryview:
        epoch = self.leader_epoch
        try:
            return await super().read(offset, bytes_max, replica=replica, committed_only=committed_only)
        except OffsetOutOfRange:
            self._must_lead(epoch)
            raise

    def check_readable(self, offset: Offset) -> None:
        if offset > self.log.end_offset:
            self.must_lead()
        super().check_readable(offset)

    # --- appending, as leader

    def append(
        self, batch: memoryview, header: BatchHeader, guard: Guard | None = None, *, own: bool = False
    ) -> "Appended | asyncio.Future[Appended]":
        """Append one checked batch; its future, if it has to wait in line, ends when it is written.

        One that begins a transaction here needs the guard that was made before its coordinator was asked.
        `own`: the coordinator appends that keeps its state here, see rule 5.
        """
        self.must_lead()
        if self.internal and not own:
            self.must_be_open_to_clients()
        admit = partial(check_member, self.name, header, guard) if header.attributes & TRANSACTIONAL else None
        begun = self.log.append(batch, header, leader_epoch=self.leader_epoch, admit=admit)
        if self.quota is not None and not isinstance(begun, Appended):
            self._in_line.append((begun, header.count))
        return begun

    def must_be_open_to_clients(self) -> None:
        """Rule 5: raise if a coordinator keeps its state here."""
        if self.internal:
            raise InvalidTopicName(f"topic {self.topic!r} is internal: only the broker itself writes to it")

    @property
    def in_line(self) -> int:
        """Messages that count for a quota, though the log has no place for them yet."""
        self._in_line = [(begun, count) for begun, count in self._in_line if not begun.done()]
        return sum(count for _, count in self._in_line)

    def must_lead(self) -> None:
        """Raise unless this broker leads the partition."""
        if self.role is not Role.LEADER:
            leader = NO_LEADER if self.image is None else self.image.leader
            raise NotLeader(f"{self.name} is led by broker {leader}: ask for metadata, send again")

    def has(self, header: BatchHeader) -> bool:
        """Whether this batch of an idempotent producer is in the log."""
        try:
            return header.producer_id >= 0 and self.log.producers.check(header) is not None
        except RunnelError:
            return False  # whatever is wrong with it, it is not there

    def missing_under_new_leader(self, header: BatchHeader) -> int | None:
        """The sequence that is missing before a batch, if its producer has written nothing under this leader yet."""
        known = self.log.producers.get(header.producer_id)
        if known is None or not known.batches or known.batches[-1].last_offset >= self.epoch_start:
            return None
        return known.next_sequence(header.producer_epoch)

    def must_have_enough(self) -> None:
        """Raise unless what is appended now can be committed."""
        if not self.progress.enough:
            raise NotEnoughReplicas(f"{self._lack}: start more brokers, or set min.insync.replicas lower for the topic")

    # --- transactions, as leader

    def in_transaction(self, header: BatchHeader) -> bool:
        """Whether a batch goes on with a transaction that is open here."""
        return is_open(self.log.producers.get(header.producer_id), header)

    def guard(self, producer_id: int) -> Guard:
        """To be taken before a coordinator is asked whether a producer's transaction may write here."""
        self.must_lead()
        return self._guards.of(producer_id)

    async def write_marker(self, ending: Ending, timeout_s: float) -> None:
        """End a transaction here; returns when that is committed, also if it was ended before; raises why not."""
        self.must_lead()
        self.must_be_open_to_clients()
        self.must_have_enough()
        if ending.version < BUMPING:
            self._guards.void(ending.producer_id, ended(ending))
        leader_epoch = self.leader_epoch
        batch = marker(
            ending.producer_id, ending.epoch,
            commit=ending.commit, coordinator_epoch=ending.coordinator_epoch, timestamp_ms=self._clock.wall_ms(),
        )  # fmt: skip
        try:
            begun = self.log.append(
                batch, read_header(batch), leader_epoch=leader_epoch, admit=partial(check_marker, ending)
            )
            appended = await begun if isinstance(begun, asyncio.Future) else begun
            end = Offset(appended.last_offset + 1)
        except AlreadyEnded:
            end = self.log.end_offset  # whatever ended it lies before
        waiting = self.committed(end, leader_epoch, timeout_s)
        if waiting is not None:
            await waiting

    # --- what is committed

    def committed(self, end: Offset, leader_epoch: Epoch, timeout_s: float) -> "asyncio.Future[None] | None":
        """None if everything below `end` is committed, else a future that says when, or why not.

        `leader_epoch` is the one that the batch was appended in: in another one, its offset may be another batch's.
        """
        self._must_lead(leader_epoch)
        if end <= self.high_watermark:
            return None
        if not self.progress.enough:
            raise self._too_few_after_append()
        return self._commits.wait(end, timeout_s)

    def _must_lead(self, leader_epoch: Epoch) -> None:
        if self.role is not Role.LEADER or leader_epoch != self.leader_epoch:
            raise NotLeader(
                f"{self.name} is not led here in epoch {leader_epoch} any more: ask for metadata, send again"
            )

    def _too_few_after_append(self) -> NotEnoughReplicasAfterAppend:
        return NotEnoughReplicasAfterAppend(
            f"{self._lack}: what was written is not committed; it may still be when more are back"
        )

    @property
    def _lack(self) -> str:
        """Why nothing is committed."""
        lack = f"{self.name} has {len(self.progress.isr)} replicas in sync, "
        if self.progress.overruled and self.image is not None:
            return lack + (
                f"enough for this broker, not for the controller, which lets {list(self.image.elr)} lead as well:"
                " its min.insync.replicas is higher"
            )
        return f"{lack}min.insync.replicas asks for {self.progress.needed}"

    # --- progress

    def fetched_by(self, follower: BrokerId, broker_epoch: Epoch, offset: Offset) -> None:
        """A follower asks for what comes after `offset`: all below, it holds."""
        now_ms = self._clock.monotonic_ms()
        if self.progress.fetched(follower, broker_epoch, offset, self.log.end_offset, now_ms):
            self._commit()

    def heard_of(self, follower: BrokerId, broker_epoch: Epoch, then_ms: Millis) -> None:
        """A follower was there at that time, and did not ask anything new."""
        self.progress.heard(follower, broker_epoch, self.log.end_offset, then_ms)

    def refused(self, proposal: Proposal) -> None:
        """The controller will never do what was proposed."""
        if self.role is Role.LEADER and self.progress.withdraw(proposal):
            self._commit()

    def _log_moved(self) -> None:
        """The log wrote or synced."""
        if self.role is Role.LEADER:
            if self.progress.own(self.log.held_offset):
                self._commit()
            if self._followers and self.log.end_offset > self._end_seen:
                self._end_seen = self.log.end_offset
                for watcher in list(self._followers):
                    watcher.grown(ENOUGH)  # a follower is never kept waiting for more
        elif self._held is not None and not self._held.done() and self._is_held:
            self._held.set_result(None)

    def _replicas_moved(self) -> None:
        """The ISR, or the minimum, changed."""
        self._commit()
        if not self.progress.enough and self._commits:
            self._commits.fail(self._too_few_after_append())

    def _commit(self) -> None:
        """Move the high watermark, and wake those who waited for it."""
        reached = self.progress.high_watermark
        if reached <= self.high_watermark:
            return
        self._advance(reached)
        self._commits.reached(reached)

    # --- following

    @property
    def _is_held(self) -> bool:
        return self.log.held_offset >= self.log.end_offset

    def question(self) -> Question | None:
        """What to ask the leader; None while what is here is not durable, whole and known, or nobody is followed."""
        if self.role is not Role.FOLLOWER or self._taking or not self._is_held:
            return None
        self.log.distrust_epochs_above(self.leader_epoch)
        if self.log.is_damaged or self.log.is_lost:
            return None
        self._asked_in = self.leader_epoch
        return Question(self.leader_epoch, self.log.end_offset, self.log.last_epoch)

    async def take(self, asked: Question, answer: Answer) -> bool:
        """Do what the leader's answer asks for; return when what it brought is durable.

        Returns whether that led anywhere. If not, or if the log raises something, ask again after a pause.
        """
        if self.role is not Role.FOLLOWER:
            return False
        self._taking += 1
        try:
            return await self._do(asked, answer)
        finally:
            self._taking -= 1

    async def _do(self, asked: Question, answer: Answer) -> bool:
        match decide(self.log, self.leader_epoch, asked, answer):
            case Append(records):
                await self._append_fetched(records)
                await self._note_leader(asked, answer)
            case Cut(offset):
                await self._cut(offset)
            case BeginAt(offset):
                logger.warning("%s begins anew at offset %d: its leader keeps nothing older", self.name, offset)
                await self.log.begin_anew(offset)
                self._reach(self.log.start_offset)
            case Distrust(epoch):
                logger.warning("%s has batches of a leader epoch that never was, above %d", self.name, epoch)
                self.log.distrust_epochs_above(epoch)
                return False
            case AskAgain(why):
                logger.debug("%s asks its leader again: %s", self.name, why)
                return False
        return True

    @property
    def is_counted_on(self) -> bool:
        """Whether somebody may think that this follower has all that it had: it is named, or its leader was told so.

        What was told in a leader epoch counts until the next one, for a leader may just be asking to let it in.
        """
        if self.role is not Role.FOLLOWER or self.image is None:
            return False
        return self._asked_in == self.leader_epoch or self._me in (*self.image.isr, *self.image.elr)

    @property
    def may_heal(self) -> bool:
        """Whether damage can be cut off: here is a follower, and nobody counts on what it had."""
        return self.role is Role.FOLLOWER and self.image is not None and self.log.is_damaged and not self.is_counted_on

    async def heal(self) -> None:
        """Cut off everything from the first damage on, so that the leader's batches can follow."""
        logger.warning("%s is cut at its damage, offset %d, and fetched again", self.name, self.log.intact_until)
        self._reach(min(self.high_watermark, self.log.intact_until))  # first: readers come in between
        await self.log.heal_from(self.log.intact_until)
        self._reach(min(self.high_watermark, self.log.end_offset))

    async def _append_fetched(self, records: memoryview) -> None:
        if not records:
            return
        begun = self.log.append_as_follower(records)
        if isinstance(begun, asyncio.Future):
            await begun
        if self.role is Role.FOLLOWER and not self._is_held:
            self._held = asyncio.get_running_loop().create_future()
            try:
                await self._held
            finally:
                self._held = None

    async def _note_leader(self, asked: Question, answer: Answer) -> None:
        """Follow the leader's start and high watermark, in this order.

        Below its start a leader can't tell any more whether a follower has the same: nobody may read that here.
        """
        reached = high_watermark(self.high_watermark, answer.high_watermark, self.log.end_offset)
        if self._follows(asked) and answer.start_offset > self.log.start_offset:
            await self.log.advance_start(answer.start_offset, reached)
        if self._follows(asked) and reached > self.high_watermark:
            self._advance(reached)

    def _follows(self, asked: Question) -> bool:
        return self.role is Role.FOLLOWER and asked.leader_epoch == self.leader_epoch

    async def _cut(self, offset: Offset) -> None:
        if offset < self.high_watermark:
            logger.error(
                "%s is cut to offset %d, below %d which was committed: an unclean election took place",
                self.name, offset, self.high_watermark,
            )  # fmt: skip
        self._reach(min(self.high_watermark, offset))  # first: readers come in between
        await self.log.truncate(offset)
        self._reach(min(self.high_watermark, self.log.end_offset))

    # --- epochs

    def epoch_end(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        """The largest epoch not above the one asked for, and where it ends (KIP-101); -1 and -1 if there is none."""
        if epoch == self.leader_epoch:
            return epoch, self.log.end_offset
        found = self.log.epochs.end_offset(epoch)
        if found[0] != NO_EPOCH or epoch > self.leader_epoch:
            return found
        # Newer than every batch here, older than this leader's epoch, which has written nothing yet.
        latest = self.log.epochs.latest
        return (epoch if latest == NO_EPOCH else latest), self.log.end_offset
