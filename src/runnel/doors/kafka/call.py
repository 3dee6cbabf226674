"""What a handler of the Kafka door is given beside its request."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from runnel.broker.broker import Broker
from runnel.broker.fetch import Waits
from runnel.broker.followers import FollowerSession
from runnel.doors.kafka.fetch_sessions import FetchSessions
from runnel.doors.kafka.share_connection import ShareConnection
from runnel.model.errors import RunnelError, as_value
from runnel.model.ids import TopicId
from runnel.replica.partition import Partition


class Following:
    """What a connection means to a broker that follows over it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.session: FollowerSession | None = None

    def end_session(self) -> None:
        if self.session is not None:
            self._broker.followers.forget(self.session)
            self.session = None


@dataclass(slots=True)
class Call:
    """One request: who asks, in which version, and the broker that answers."""

    broker: Broker
    version: int
    client_id: str
    client_host: str
    let_pass: Callable[[], None]  # later requests of this connection may start
    fetch_sessions: FetchSessions
    waits: Waits  # end with the connection
    connection: Following  # ends with it, too
    sharing: ShareConnection  # and so does this

    def partition(self, topic: str, number: int) -> Partition | RunnelError:
        """The partition's copy here, or the error that says why there is none."""
        try:
            return self.broker.partitions.find_readable(topic, number)
        except RunnelError as error:
            return as_value(error)

    def partition_by_id(self, topic_id: TopicId, number: int) -> Partition | RunnelError:
        try:
            return self.broker.partitions.find_readable_by_id(topic_id, number)
        except RunnelError as error:
            return as_value(error)


Answer: TypeAlias = Callable[[Any, Call], Awaitable[Any]]  # how one API is answered
