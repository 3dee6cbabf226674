"""What says that a question went to the wrong broker, or to none: look again who leads, after a pause, and ask it."""

from typing import Final

from runnel.client.errors import BrokerUnreachable
from runnel.model.errors import LeaderNotAvailable, NotLeader

PAUSE_MS: Final = 50  # and up to as much again, by chance
ELSEWHERE: Final = (NotLeader, LeaderNotAvailable, BrokerUnreachable)
