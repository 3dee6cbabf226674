"""What a share group answers to those who take it for a group that reads by offset. As Kafka does, it is not there for
them, or does not know them."""

from typing import NoReturn

from runnel.groups.turn import Turn
from runnel.groups.values import CommitInTransaction, CommitOffsets, FetchOffsets, Heartbeat, Join, Leave, Left, Sync
from runnel.model.errors import GroupNotFound, InconsistentGroupProtocol, UnknownMember
from runnel.model.ids import PartitionKey


class Foreign:
    group_id: str

    # --- members of the classic protocol
    def join(self, request: Join, ticket: object, turn: Turn) -> None:
        raise InconsistentGroupProtocol(f"group {self.group_id!r} is a share group: choose another group.id")

    def sync(self, request: Sync, ticket: object, turn: Turn) -> None:
        raise self._unknown(request.member_id)

    def heartbeat(self, request: Heartbeat, ticket: object, turn: Turn) -> None:
        raise self._unknown(request.member_id)

    def leave(self, request: Leave, ticket: object, turn: Turn) -> None:
        turn.reply(ticket, Left(tuple((each, self._unknown(each.member_id)) for each in request.members)))

    def _unknown(self, member_id: str) -> UnknownMember:
        return UnknownMember(f"{member_id!r} is no member of {self.group_id!r}, which is a share group")

    # --- offsets
    def check_commit(self, request: CommitOffsets, turn: Turn) -> None:
        self._refuse()

    def check_transaction(self, request: CommitInTransaction) -> None:
        self._refuse()

    def check_partition(self, request: CommitOffsets, partition: PartitionKey) -> None:
        self._refuse()

    check_transaction_partition = check_partition

    def check_fetch(self, request: FetchOffsets) -> None:
        self._refuse()

    def check_delete_offsets(self) -> None:
        self._refuse()

    def subscribes(self, topic: str) -> bool:
        self._refuse()

    def unused_since_ms(self, committed_ms: int, topic: str | None) -> int | None:
        """It has no offsets that could grow old."""
        return None

    def _refuse(self) -> NoReturn:
        raise GroupNotFound(f"group {self.group_id!r} is a share group: it has no committed offsets")
