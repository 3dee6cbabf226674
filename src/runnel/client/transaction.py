"""Where a transactional producer stands: what may be done now, and what follows from what went wrong. Decides only.

Rule 1: one transaction at a time, and nothing is sent outside of one.
Rule 2: once a part of a transaction has failed, it is doomed: nothing more of it is sent, and it can only be aborted.
Rule 3: once a commit was asked for, it can be asked for again, never aborted: it may have been carried out.
Rule 4: fenced is for ever. The id has another producer now, or the coordinator ended a transaction that took too long.
Rule 5: where numbers of batches are in doubt and ending the transaction gives no new epoch, one is asked for.

    NEW --> READY --begin--> OPEN --commit--> COMMITTING --> READY
                              +----abort----> ABORTING ----> READY         from anywhere --fenced--> DEAD
                              +--handed over--> DEAD
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from runnel.client.errors import Refused
from runnel.client.line import Identity
from runnel.client.metadata import TopicPartition
from runnel.model.errors import (
    InvalidProducerEpoch,
    InvalidProducerMapping,
    InvalidTransactionState,
    ProducerFenced,
    RunnelError,
    TransactionAbortable,
    UnsupportedVersion,
)
from runnel.wire.kafka.error_codes import ErrorCode


class State(Enum):
    NEW = auto()  # no identity yet
    READY = auto()
    OPEN = auto()
    COMMITTING = auto()
    ABORTING = auto()
    DEAD = auto()


@dataclass(slots=True)
class Transaction:
    """The present transaction of one transactional id, or the pause between two."""

    id: str
    timeout_ms: int
    state: State = State.NEW
    identity: Identity = Identity()
    modern: bool = False  # brokers add partitions themselves, and each end brings a new epoch (KIP-890)
    partitions: set[TopicPartition] = field(default_factory=set)  # that the coordinator knows of (classic)
    groups: set[str] = field(default_factory=set)  # likewise
    started: bool = False  # the coordinator has, or may have, heard of it
    renew: bool = False  # a new epoch is needed before the next one
    lost: bool = False  # the coordinator knows nothing of us: there is nothing it could end
    doubtful: bool = False  # a commit was asked for, and no answer came
    doom: RunnelError | None = None  # why it can only be aborted; or why this producer is dead

    # --- beginning
    def check_can_begin(self) -> None:
        if self.state is State.DEAD:
            raise self._why()
        if self.state is State.OPEN:
            raise InvalidTransactionState(
                f"a transaction of {self.id!r} is open: commit or abort it before another begins"
            )
        if self.state is State.ABORTING:
            raise InvalidTransactionState(f"the last transaction of {self.id!r} is not aborted yet: abort it again")
        if self.state is State.COMMITTING:
            raise InvalidTransactionState(
                f"nobody knows yet whether the last transaction of {self.id!r} was committed: commit it again"
            )

    def identified(self, identity: Identity) -> None:
        self.identity = identity
        self.state = State.READY

    def opened(self, *, modern: bool) -> None:
        self.state = State.OPEN
        self.modern = modern

    def check_open(self) -> None:
        """Whether something may be sent."""
        if self.doom is not None:
            raise self._why()
        if self.state is not State.OPEN:
            raise InvalidTransactionState(
                f"no transaction of {self.id!r} is open: what a transactional producer sends belongs to one; begin it"
            )

    def _why(self) -> RunnelError:
        """The reason, without the history of those who got it before."""
        assert self.doom is not None
        return self.doom.with_traceback(None)

    # --- ending
    def committing(self) -> None:
        if self.state is not State.COMMITTING:
            self.check_open()
        self.state = State.COMMITTING

    def aborting(self) -> None:
        if self.state is State.DEAD:
            raise self._why()
        if self.state is State.COMMITTING:
            raise InvalidTransactionState(
                f"the transaction of {self.id!r} can't be aborted, since its commit was asked for: commit it again"
            )
        if self.state not in (State.OPEN, State.ABORTING):
            raise InvalidTransactionState(f"no transaction of {self.id!r} is open: there is nothing to abort")
        self.state = State.ABORTING

    @property
    def must_end(self) -> bool:
        """Whether the coordinator has to be told of the end."""
        return self.started and not self.lost

    def ended(self, identity: Identity) -> None:
        self.identity = identity
        self.state = State.READY
        self.partitions.clear()
        self.groups.clear()
        self.started = self.lost = self.doubtful = False
        self.doom = None

    def handed_over(self) -> None:
        """It stays open, and somebody else ends it: there is nothing left to do here."""
        self.check_open()
        self.state = State.DEAD
        self.doom = InvalidTransactionState(
            f"the transaction of {self.id!r} was handed over, and is ended by somebody else: make a new producer"
        )

    def give_up(self) -> None:
        """It is aborted while some of it is still under way: numbers of batches may be in doubt."""
        if self.doom is None:
            self.renew = not self.modern
            self.doom = TransactionAbortable(f"the transaction of {self.id!r} was aborted before this was sent")

    # --- what went wrong
    def fail(self, error: RunnelError, *, coordinator: bool = False) -> RunnelError:
        """Note a failure of a part of the transaction; what to raise for it. The first one counts."""
        if self.doom is None or (self.state is not State.DEAD and self._fatal(error, coordinator)):
            self._fail(error, coordinator)
        return self._why()

    def _fail(self, error: RunnelError, coordinator: bool) -> None:
        if self._fatal(error, coordinator):
            self.state = State.DEAD
            fenced = isinstance(error, ProducerFenced | InvalidProducerEpoch)
            self.doom = self._fenced() if fenced else error
            return
        why: object = error
        if isinstance(error, InvalidTransactionState | TransactionAbortable) and self.state is State.COMMITTING:
            why = f"it was open for more than {self.timeout_ms} ms, or an administrator ended it, and it was aborted"
        if self.state is State.COMMITTING:
            self.state = State.OPEN  # refused for certain: it may be aborted
        self.renew = not self.modern
        if isinstance(error, InvalidProducerMapping):
            self.renew = self.lost = True
        self.doom = TransactionAbortable(
            f"the transaction of {self.id!r} can't be committed: {why}. Abort it (leaving its block does that), then "
            "do its work again"
        )

    def _fatal(self, error: RunnelError, coordinator: bool) -> bool:
        """Whether there is nothing this producer can still do.

        A partition's leader may know a newer epoch because our own transaction was ended: the coordinator decides. In
        the modern dialect, a commit in a wrong state is that of an aborted transaction: an abort brings the new epoch.
        """
        if isinstance(error, Refused):
            return error.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if isinstance(error, InvalidTransactionState):
            return coordinator and not (self.modern and self.state is State.COMMITTING)
        if isinstance(error, InvalidProducerEpoch):
            return coordinator
        return isinstance(error, ProducerFenced | UnsupportedVersion)

    def _fenced(self) -> ProducerFenced:
        """Which of the two it was, the coordinator does not say."""
        fate = "it may or may not have been committed" if self.doubtful else "nothing of it was committed"
        return ProducerFenced(
            f"this producer may not write any more: another one has the transactional id {self.id!r} now, or its "
            f"transaction was open for more than {self.timeout_ms} ms and was aborted. If one was open, {fate}. Close "
            "this producer; make a new one if it is this process that should go on"
        )
