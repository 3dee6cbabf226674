"""Which topics the members of a group read, and how large they are: where that changes, the group is assigned anew."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from hashlib import blake2b
from typing import Generic, Protocol, TypeVar

from runnel.groups.turn import Turn
from runnel.model.ids import TopicId


class ReadsTopics(Protocol):
    topics: frozenset[TopicId]  # those of its topics that exist


M = TypeVar("M", bound=ReadsTopics)


class TopicsRead(ABC, Generic[M]):
    """The part of a group that looks at topics; `_topics_hash` is kept with the group."""

    def __init__(self) -> None:
        self.members: dict[str, M] = {}
        self._topics_hash = 0
        self._topics_version: int | None = None  # the picture of topics that the members' topics were read from

    @abstractmethod
    def _read_topics(self, member: M, turn: Turn) -> None:
        """Find the topics that a member wishes for."""

    def _notice_topics(self, turn: Turn) -> bool:
        """Look at the topics anew if there is a new picture; True if those of the group changed."""
        if self._topics_version == turn.topics.version:
            return False
        self._topics_version = turn.topics.version
        for member in self.members.values():
            self._read_topics(member, turn)
        return topics_hash(self._counts(turn)) != self._topics_hash

    def _counts(self, turn: Turn) -> dict[TopicId, int]:
        wanted = frozenset[TopicId]().union(*{member.topics for member in self.members.values()})
        return {topic_id: turn.topics.partition_count(topic_id) for topic_id in wanted}


def topics_hash(counts: Mapping[TopicId, int]) -> int:
    """A short name for topics and their sizes: the same for the same ones, over restarts."""
    digest = blake2b(digest_size=6)
    for topic_id, count in sorted(counts.items()):
        digest.update(topic_id.bytes + count.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big")
