"""A short name for a set of topics and their sizes: a group that finds another one is assigned anew."""

from collections.abc import Mapping
from hashlib import blake2b

from runnel.model.ids import TopicId


def topics_hash(counts: Mapping[TopicId, int]) -> int:
    """The same for the same topics with the same partition counts, over restarts."""
    digest = blake2b(digest_size=6)
    for topic_id, count in sorted(counts.items()):
        digest.update(topic_id.bytes + count.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big")
