"""Fetch sessions (KIP-227): a client says once what it reads, then only what changed.

Rule 1: a session belongs to the connections of one broker process; who comes with an unknown one is told to start anew.
Rule 2: the number of sessions is bounded: the one unused for longest goes first.
Rule 3: what all sessions remember is bounded: the one unused for longest goes first here, too.
Rule 4: an incremental answer holds only partitions that have something new to say.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from runnel.model.errors import FetchSessionNotFound, InvalidFetchSessionEpoch
from runnel.model.ids import TopicId
from runnel.model.seams import Rng

SESSIONS_MAX = 1_000  # Kafka's max.incremental.fetch.session.cache.slots
PARTITIONS_MAX = 200_000  # of all sessions; 400 bytes each
NO_SESSION = 0
INITIAL_EPOCH = 0  # a full fetch that would like a session
FINAL_EPOCH = -1  # a full fetch that ends its session
EPOCH_MAX = 2**31 - 1


class SessionPartition(NamedTuple):
    """Which partition: by name up to Fetch v12, by id since v13."""

    topic: str
    topic_id: TopicId
    number: int


class Wanted(NamedTuple):
    """What the client wants of one partition."""

    offset: int
    bytes_max: int
    leader_epoch: int
    last_epoch: int


Told: TypeAlias = tuple[int, int, int]  # high watermark, last stable offset, log start: what the client knows


@dataclass(slots=True)
class FetchSession:
    id: int
    epoch: int = 1
    wanted: dict[SessionPartition, Wanted] = field(default_factory=dict)
    told: dict[SessionPartition, Told] = field(default_factory=dict)

    def has_news(self, partition: SessionPartition, told: Told, notable: bool) -> bool:
        """Whether an incremental answer must name this partition; remembers what the client learns."""
        before = self.told.get(partition)
        self.told[partition] = told
        return notable or before != told

    def count_with(self, named: Iterable[SessionPartition]) -> int:
        """The number of partitions once these are named, some of them again."""
        return len(self.wanted) + sum(one not in self.wanted for one in named)

    def serve_last(self, partition: SessionPartition) -> None:
        """Let the others come first next time: an answer is bounded, and must not always go to the same partitions."""
        self.wanted[partition] = self.wanted.pop(partition)


class FetchSessions:
    """The sessions of one door."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def create(self, wanted: dict[SessionPartition, Wanted]) -> FetchSession:
        held = sum(len(session.wanted) for session in self._sessions.values()) + len(wanted)
        while self._sessions and (len(self._sessions) >= SESSIONS_MAX or held > PARTITIONS_MAX):
            held -= len(self._sessions.popitem(last=False)[1].wanted)
        session_id = self._rng.below(EPOCH_MAX - 1) + 1
        while session_id in self._sessions:
            session_id = self._rng.below(EPOCH_MAX - 1) + 1
        session = self._sessions[session_id] = FetchSession(session_id, wanted=dict(wanted))
        return session

    def end(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def resume(self, session_id: int, epoch: int) -> FetchSession:
        """The session of an incremental fetch, one epoch further."""
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionNotFound(f"fetch session {session_id} is not known here: start a new one")
        if epoch != session.epoch:
            raise InvalidFetchSessionEpoch(f"fetch session {session_id} is at epoch {session.epoch}, not {epoch}")
        self._sessions.move_to_end(session_id)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        return session

    def __len__(self) -> int:
        return len(self._sessions)
