"""What says that a question went to the wrong broker, or to none: look again who leads, after a pause, and ask it."""

from typing import Final

from runnel.client.errors import BrokerUnreachable
from runnel.cluster.image import Image
from runnel.model.errors import LeaderNotAvailable, NotLeader, UnknownTopicId
from runnel.model.ids import TopicId

PAUSE_MS: Final = 50  # and up to as much again, by chance
ELSEWHERE: Final = (NotLeader, LeaderNotAvailable, BrokerUnreachable)


def is_elsewhere(error: object, image: Image, topic_id: TopicId) -> bool:
    """The same of what concerns a topic, which may be quite new: in the newest image, and not yet on every broker."""
    return isinstance(error, ELSEWHERE) or (isinstance(error, UnknownTopicId) and topic_id in image.topics)
