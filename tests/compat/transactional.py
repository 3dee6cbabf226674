"""A transactional producer of a foreign client, as the tests see it."""

import itertools
from collections.abc import Iterable

from tests.compat.agent import Agent, Message

TIMEOUT_MS = 60_000
_numbers = itertools.count(1)


class Transactional:
    """One producer in an agent's process; an agent may have several, also of the same transactional id."""

    def __init__(self, agent: Agent, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self.agent = agent
        self.id = transactional_id
        self._name = f"producer-{next(_numbers)}"
        agent.call("open_producer", producer=self._name, transactional_id=transactional_id, timeout_ms=timeout_ms)

    def _do(self, verb: str, **arguments: object) -> None:
        self.agent.call(verb, producer=self._name, **arguments)

    def begin(self) -> "Transactional":
        self._do("begin")
        return self

    def send(self, topic: str, *messages: Message) -> "Transactional":
        """Send, and wait for the acknowledgements."""
        self._do("send", topic=topic, records=[message.to_json() for message in messages])
        return self

    def send_offsets(
        self, group: str, offsets: Iterable[tuple[str, int, int]], *, as_member: bool = False
    ) -> "Transactional":
        """Offsets as (topic, partition, offset); `as_member` from the seat that the agent kept."""
        self._do("send_offsets", group=group, offsets=list(offsets), as_member=as_member)
        return self

    def commit(self) -> None:
        self._do("commit_transaction")

    def abort(self) -> None:
        self._do("abort_transaction")

    def close(self) -> None:
        self._do("close_producer")
