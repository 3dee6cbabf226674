"""The members of a classic group, and what they can agree on. It decides nothing about time or replies."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from runnel.groups.records import ClassicMemberRecord
from runnel.groups.seats import find_seated
from runnel.groups.subscription import Malformed, Subscription, read_subscription
from runnel.groups.values import DescribedMember, Join, JoinedMember, OfferedProtocol


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[OfferedProtocol, ...]
    assignment: bytes = b""
    joining: object | None = None  # the ticket of a join that waits for the others
    syncing: object | None = None  # the ticket of a sync that waits for the leader
    is_new: bool = False  # it has never been told its id and generation: it can't send heartbeats yet

    @property
    def waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None

    @classmethod
    def of_join(cls, member_id: str, request: Join) -> "Member":
        member = cls(member_id, request.instance_id, request.client_id, request.client_host, 0, 0, (), is_new=True)
        member.update(request)
        return member

    @classmethod
    def of_record(
        cls, record: ClassicMemberRecord, offers: tuple[tuple[str, bytes], ...] | None, protocol: str
    ) -> "Member":
        """A member as the log has it; where it does not say what the member offers, that is the group's protocol."""
        protocols = ((protocol, record.subscription),) if offers is None else offers
        return cls(
            record.member_id, record.instance_id, record.client_id, record.client_host, record.session_timeout_ms,
            record.rebalance_timeout_ms, tuple(OfferedProtocol(*each) for each in protocols), record.assignment,
        )  # fmt: skip

    def record(self, protocol: str) -> ClassicMemberRecord:
        return ClassicMemberRecord(
            self.member_id, self.instance_id, self.client_id, self.client_host, self.rebalance_timeout_ms,
            self.session_timeout_ms, self.metadata(protocol), self.assignment,
        )  # fmt: skip

    def offers(self) -> tuple[tuple[str, bytes], ...]:
        return tuple((each.name, each.metadata) for each in self.protocols)

    def update(self, request: Join) -> None:
        self.client_id, self.client_host = request.client_id, request.client_host
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.protocols = request.protocols

    def metadata(self, protocol: str) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def subscription(self, protocol: str) -> Subscription | None:
        """What a consumer subscribes to; None if its bytes can't be read."""
        try:
            return read_subscription(self.metadata(protocol))
        except Malformed:
            return None

    def described(self, protocol: str, stable: bool) -> DescribedMember:
        """What an administrator sees; metadata and assignment only of a stable group, as in Kafka."""
        metadata, assignment = (self.metadata(protocol), self.assignment) if stable else (b"", b"")
        return DescribedMember(self.member_id, self.instance_id, self.client_id, self.client_host, metadata, assignment)


class Roster:
    """Members in the order they came. The first is the leader, until it goes or another is elected."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.statics: dict[str, str] = {}  # instance id -> member id
        self.leader = ""

    def __len__(self) -> int:
        return len(self.members)

    def add(self, member: Member) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.statics[member.instance_id] = member.member_id
        self.leader = self.leader or member.member_id

    def remove(self, member: Member) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self.statics[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), "")

    def replace(self, old: Member, member_id: str) -> None:
        """Give a static member its new id; its place, assignment and leadership stay."""
        was_leader = self.leader == old.member_id
        self.remove(old)
        old.member_id = member_id
        self.add(old)
        if was_leader:
            self.leader = member_id

    def find(self, member_id: str, instance_id: str | None) -> Member:
        """The member that sent a request, or why it is none (any more)."""
        return find_seated(self.members, self.statics, member_id, instance_id, "the group")

    def elect_joined(self) -> bool:
        """Make sure that the leader is one of those who rejoined; False if nobody did."""
        leader = self.members.get(self.leader)
        if leader is None or leader.joining is None:
            joined = [member.member_id for member in self.members.values() if member.joining is not None]
            if not joined:
                return False
            self.leader = joined[0]
        return True

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def candidates(self) -> list[str]:
        """The protocols that every member offers, in the leader's order."""
        counts = Counter(each.name for member in self.members.values() for each in _distinct(member.protocols))
        leader = self.members.get(self.leader)
        return [each.name for each in _distinct(leader.protocols if leader else ()) if counts[each.name] == len(self)]

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all others offer too."""
        candidates = self.candidates()
        votes = Counter(
            next(each.name for each in member.protocols if each.name in candidates) for member in self.members.values()
        )
        return max(candidates, key=lambda name: votes[name])  # a tie goes to the leader's favourite

    def subscribed_topics(self, protocol: str) -> frozenset[str] | None:
        """The topics all members subscribe to together; None if one of them can't be read."""
        topics: set[str] = set()
        for member in self.members.values():
            subscription = member.subscription(protocol)
            if subscription is None:
                return None
            topics.update(subscription.topics)
        return frozenset(topics)

    def joined(self, protocol: str) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self.members.values()
        )


def _distinct(protocols: Iterable[OfferedProtocol]) -> list[OfferedProtocol]:
    return list({each.name: each for each in protocols}.values())
