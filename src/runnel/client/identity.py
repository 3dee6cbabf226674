"""Who a producer is to the brokers, so that they know a batch that comes twice: nobody, or an idempotent producer.

What a sender asks before it sends is the same of both, and of a transactional producer (`transactions`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeAlias

from runnel.client.cluster import Cluster
from runnel.client.errors import check
from runnel.client.line import Identity, Line
from runnel.client.metadata import TopicPartition
from runnel.model.errors import RetriableError, RunnelError
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]

NO_TIMEOUT_MS = 60_000  # means nothing without a transactional id, but has to be positive


class Admission(Protocol):
    """What it takes, beyond a leader, for a line to send."""

    @property
    def transactional_id(self) -> str | None: ...

    @property
    def produce_version_max(self) -> int | None: ...

    @property
    def doom(self) -> RunnelError | None:
        """Why nothing is to be sent any more; batches that wait are given up with it."""

    def admits(self, line: Line, spawn: Spawn) -> bool:
        """Whether a line may send now. If not, what it takes is started, and the sender is woken when it is done."""

    def fail(self, error: RunnelError) -> RunnelError:
        """A batch was given up; the error that those behind it get, if they are given up for that."""


class Anonymous:
    """Batches are not numbered: one that is sent again may be there twice."""

    transactional_id: str | None = None
    produce_version_max: int | None = None
    doom: RunnelError | None = None

    def admits(self, line: Line, spawn: Spawn) -> bool:
        return True

    def fail(self, error: RunnelError) -> RunnelError:
        return error


class Idempotence(Anonymous):
    """One producer id serves all partitions, until one of them wears out its epochs."""

    def __init__(
        self,
        cluster: Cluster,
        lines: Mapping[TopicPartition, Line],
        *,
        wake: Callable[[], None],
        refuse: Callable[[str, RunnelError], None],
    ) -> None:
        self._cluster = cluster
        self._lines = lines
        self._wake = wake
        self._refuse = refuse  # give up what waits for this topic
        self._asking = False

    def admits(self, line: Line, spawn: Spawn) -> bool:
        if line.identity.producer_id >= 0 and not line.worn_out:
            return True
        fresh = next((other.identity for other in self._lines.values() if other.identity.epoch == 0), None)
        if fresh is not None and not line.worn_out:
            line.adopt(fresh)
            return True
        if not self._asking:
            self._asking = True
            spawn(self._identify(line))
        return False

    async def _identify(self, line: Line) -> None:
        request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=NO_TIMEOUT_MS)
        try:
            answer = await self._cluster.ask_any(Api.INIT_PRODUCER_ID, request, m.InitProducerIdResponse)
            check(answer.error_code, action="get a producer id", broker=str(self._cluster))
            line.adopt(Identity(answer.producer_id, answer.producer_epoch))
        except RetriableError:
            line.not_before = asyncio.get_running_loop().time() + self._cluster.settings.backoff_ms_max / 1000
        except RunnelError as error:
            self._refuse(line.where.topic, error)
        finally:
            self._asking = False
            self._wake()
