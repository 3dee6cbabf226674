"""One partition on one broker of the model: what replica.partition does, without a loop, around the same pure cores.

The leader's side is replica.progress; the follower's, replica.following. What is here is only who calls them when.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from runnel.broker.fetch import check_epoch, divergence_of
from runnel.cluster.image import NO_LEADER
from runnel.cluster.image import Partition as PartitionImage
from runnel.model.errors import DuplicateSequence, OffsetOutOfRange, OutOfOrderSequence, RunnelError
from runnel.model.ids import NO_EPOCH, BrokerId, Epoch, Offset
from runnel.replica.following import Answer, Append, AskAgain, BeginAt, Cut, Question, Verdict, decide, high_watermark
from runnel.replica.partition import Partition as RealPartition
from runnel.replica.partition import Role
from runnel.replica.progress import Progress, Proposal
from runnel.testing.core.invariants import Leader, Truth
from runnel.testing.core.log import Entry, ModelLog

if TYPE_CHECKING:
    from runnel.testing.core.broker import ModelBroker

Reply: TypeAlias = Callable[[str, int], None]  # (outcome, offset)

OK: Final = "ok"
NOT_LEADER: Final = "not leader"
TOO_FEW: Final = "too few in sync"
TOO_FEW_AFTER: Final = "too few in sync after append"
OUT_OF_ORDER: Final = "out of order"
APPENDED_BEFORE: Final = "duplicate"

ACKS_ALL: Final = -1
RECORDS_MAX: Final = 20  # in one answer: several rounds are needed to catch up


class Replica:
    """A log with a role."""

    __slots__ = (
        "_asked", "_heard", "_host", "_rules", "_syncing", "_turn", "_waiting",
        "high", "image", "leader_epoch", "log", "number", "progress", "role", "rotten", "truth",
    )  # fmt: skip

    def __init__(self, host: "ModelBroker", number: int, log: ModelLog, truth: Truth) -> None:
        self._host = host
        self._rules = host.world.rules
        self.number = number
        self.log = log
        self.truth = truth
        self.role = Role.IDLE
        self.image: PartitionImage | None = None
        self.leader_epoch = NO_EPOCH
        self.high = log.start_offset
        self.progress: Progress
        self.rotten = False  # the copy is damaged, and has to be made anew
        self._waiting: list[tuple[int, Reply]] = []
        self._syncing = False
        self._turn = 0  # of a follower's questions
        self._asked: Question | None = None
        self._heard: tuple[Epoch, Offset, Offset] | None = None  # what an answer said beside its records

    @property
    def name(self) -> str:
        return self.truth.name

    # The real one: which epoch ends where, as a leader tells it.
    def epoch_end(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        return RealPartition.epoch_end(cast(Any, self), epoch)

    # --- roles

    def apply(self, image: PartitionImage) -> None:
        """Be what the image says."""
        if self.image is not None and image.epoch < self.image.epoch:
            return
        self.image = image
        if self.rotten:
            self._make_anew(image)
        if image.leader != self._host.id:
            self._follow(image)
        elif self.role is not Role.LEADER or image.leader_epoch != self.leader_epoch:
            self._lead(image)
        else:
            self.progress.see(image)
            self.truth.counts(self._as_leader())
            self.committed()
            if not self.progress.enough:
                self._fail(TOO_FEW_AFTER)

    def _make_anew(self, image: PartitionImage) -> None:
        """Throw a damaged copy away, once nobody counts on it."""
        me = BrokerId(self._host.id)
        if me not in image.isr and me not in image.elr:
            self.rotten = False
            self.log.wipe()
            self._heard = None
            self.high = self.log.start_offset
            self.truth.shortened(me)
        elif image.leader != me:
            self._host.tell_damage(self.number)

    def _lead(self, image: PartitionImage) -> None:
        self.step_down()
        end = self.log.end_offset
        self.leader_epoch = image.leader_epoch
        self.high = min(self.high, end) if self._rules.high_kept else end
        self.truth.leads(self._host.id, image.leader_epoch)
        self.truth.producers(self._host.id, self.log)
        self.progress = Progress(
            BrokerId(self._host.id), image,
            epoch_start=end, high_watermark=self.high,
            minimum=self._host.minimum(self.number), now_ms=self._host.now_ms(),
        )  # fmt: skip
        self.role = Role.LEADER
        self._host.world.transition("role", self._host, self.number)
        self.progress.own(self.log.held_offset)
        self.committed()
        self.sync()

    def _follow(self, image: PartitionImage) -> None:
        if self.role is Role.FOLLOWER and image.leader_epoch == self.leader_epoch:
            return
        self.step_down()
        self.leader_epoch = image.leader_epoch
        self.role = Role.FOLLOWER
        self.sync()
        self._ask_after(self._host.swarm.pause_ms * self._host.scheduler.rng.random())

    def step_down(self) -> None:
        self.role = Role.IDLE
        self._turn += 1
        self._fail(NOT_LEADER)

    # --- leading

    def produce(self, value: int, producer: int, sequence: int, acks: int, reply: Reply) -> None:
        if self.role is not Role.LEADER:
            return reply(NOT_LEADER, -1)
        if acks == ACKS_ALL and not self.progress.enough:
            return reply(TOO_FEW, -1)
        try:
            known = self.log.check(producer, sequence)
        except OutOfOrderSequence:
            return reply(OUT_OF_ORDER, -1)
        except DuplicateSequence:
            return reply(APPENDED_BEFORE, -1)
        offset = known.base_offset if known is not None else self._append(value, producer, sequence)
        must_wait = acks == ACKS_ALL and (self._rules.duplicate_at_high if known else self._rules.ack_at_high)
        if must_wait and offset >= self.high:
            self._waiting.append((offset, reply))
            return None
        return reply(OK, offset)

    def _append(self, value: int, producer: int, sequence: int) -> int:
        self.log.append(Entry(self.leader_epoch, value, producer, sequence))
        self.truth.appended(self._host.id, self.log)
        self._moved()
        self.sync()
        return len(self.log.entries) - 1

    def withdrawn(self, proposal: Proposal) -> None:
        """The controller refused for good."""
        self.progress.withdraw(proposal)
        self.truth.counts(self._as_leader())
        self.committed()

    def committed(self) -> None:
        """The high watermark may have moved."""
        high, before = self.progress.high_watermark, self.high
        if high == before:
            return
        self.high = high
        self.truth.commits(self._as_leader(), before)
        ready = [reply for offset, reply in self._waiting if offset < high]
        if ready:
            offsets = [offset for offset, _ in self._waiting if offset < high]
            self._waiting = [each for each in self._waiting if each[0] >= high]
            for reply, offset in zip(ready, offsets, strict=True):
                reply(OK, offset)

    def _as_leader(self) -> Leader:
        assert self.image is not None
        progress = self.progress
        return Leader(
            self._host.id, self.leader_epoch, self.log, progress.high_watermark, progress.maximal_isr,
            self.image.replicas,
        )  # fmt: skip

    def _fail(self, outcome: str) -> None:
        failed, self._waiting = self._waiting, []
        for _, reply in failed:
            reply(outcome, -1)

    def answer(self, follower: BrokerId, broker_epoch: Epoch, asked: Question) -> Answer:
        """What this broker says to a follower that asks, as broker.followers does."""
        log = self.log
        if self.role is not Role.LEADER or not self._may_ask(follower, asked):
            return Answer(Verdict.REFUSED, self.high, log.start_offset)
        try:
            diverged = None
            if asked.last_epoch != NO_EPOCH:
                diverged = divergence_of(cast(Any, self), asked.last_epoch, asked.offset)
        except OffsetOutOfRange:
            return Answer(Verdict.OUT_OF_RANGE, self.high, log.start_offset)
        if diverged is None and not log.start <= asked.offset <= log.end_offset:
            return Answer(Verdict.OUT_OF_RANGE, self.high, log.start_offset)
        if diverged is None or not self._rules.diverged_first:
            self.progress.fetched(follower, broker_epoch, asked.offset, log.end_offset, self._host.now_ms())
            self.committed()
        if diverged is not None:
            epoch, end = diverged
            return Answer(Verdict.DIVERGED, self.high, log.start_offset, epoch=epoch, end_offset=end)
        records = cast(memoryview, log.entries[asked.offset : asked.offset + RECORDS_MAX])
        return Answer(Verdict.OK, self.high, log.start_offset, records)

    def _may_ask(self, follower: BrokerId, asked: Question) -> bool:
        try:
            check_epoch(cast(Any, self), asked.leader_epoch)
        except RunnelError:
            return False
        return self.image is not None and follower in self.image.replicas

    def retain(self, start: int) -> None:
        """Retention on a leader: never above the high watermark."""
        self.log.advance_start(min(start, self.high))

    # --- the disk

    def sync(self) -> None:
        """Begin a sync unless one is under way."""
        if self._syncing or self.log.synced >= len(self.log.entries):
            return
        self._syncing = True
        self._host.after(self._host.sync_ms(self.log), self._synced, len(self.log.entries), self.log.cuts)

    def _synced(self, end: int, cuts: int) -> None:
        self._syncing = False
        self.log.sync(end, cuts)
        self._moved()
        self.sync()

    def _moved(self) -> None:
        """The log was appended to, or synced."""
        if self.role is Role.LEADER:
            self.progress.own(self.log.held_offset)
            self.committed()
        elif self.role is Role.FOLLOWER and self._heard is not None and self._is_held:
            self._note_leader()

    @property
    def _is_held(self) -> bool:
        return self.log.held_offset >= self.log.end_offset or not self._rules.held_is_synced

    # --- following

    def _ask_after(self, delay_ms: float) -> None:
        self._turn += 1
        self._host.after(delay_ms, self._ask, self._turn)

    def _ask(self, turn: int) -> None:
        if turn != self._turn or self.role is not Role.FOLLOWER:
            return
        self._turn += 1
        assert self.image is not None
        self._host.after(self._host.swarm.patience_ms, self._ask, self._turn)  # if no answer comes
        if self.image.leader != NO_LEADER and self._is_held:
            self._asked = Question(self.leader_epoch, self.log.end_offset, self.log.last_epoch)
            self._host.ask(self.image.leader, self.number, self._asked)

    def take(self, asked: Question, answer: Answer) -> None:
        """An answer came: perhaps to the last question, perhaps to an older one."""
        if self.role is not Role.FOLLOWER:
            return
        action = decide(self.log, self.leader_epoch, asked, answer)
        match action:
            case Append(records):
                self._take_records(cast(list[Entry], records), asked, answer)
            case Cut(offset):
                self._cut(offset)
                self._ask_after(0.1)
            case BeginAt(offset):
                self.log.begin_anew(offset)
                self.high = self.log.start_offset
                self.truth.shortened(self._host.id)
                self._ask_after(0.1)
            case AskAgain():
                if asked == self._asked:
                    self._ask_after(self._host.swarm.pause_ms)

    def _take_records(self, records: list[Entry], asked: Question, answer: Answer) -> None:
        for entry in records:
            self.log.append(entry)
            self.truth.appended(self._host.id, self.log, answer.start_offset)
        self._heard = asked.leader_epoch, answer.high_watermark, answer.start_offset
        if self._is_held:
            self._note_leader()
        self.sync()

    def _note_leader(self) -> None:
        """What was got is held: follow the leader's high watermark and start, and go on."""
        assert self._heard is not None
        (epoch, high, start), self._heard = self._heard, None
        if epoch != self.leader_epoch:
            return
        reached = high_watermark(self.high, high, self.log.end_offset)
        if start > self.log.start:  # first: what lies below the leader's start was compared with nothing
            self.log.advance_start(min(start, reached))
        if reached != self.high:
            self.high = reached
            self.truth.exposes(self._host.id, self.log, reached)
        more = self.log.end_offset < high
        self._ask_after(0.1 if more else self._host.swarm.pause_ms * self._host.scheduler.rng.random())

    def _cut(self, offset: Offset) -> None:
        self.log.truncate(offset)
        self._heard = None
        self.high = min(self.high, self.log.end_offset)
        self.truth.shortened(self._host.id)
        self.truth.producers(self._host.id, self.log)
        self._host.world.transition("cut", self._host, self.number)

    # --- reading

    def read(self) -> None:
        """Somebody reads all that may be read here."""
        if self.role is not Role.IDLE:
            limit = self.high if self._rules.read_to_high else int(self.log.end_offset)
            self.truth.exposes(self._host.id, self.log, limit)
