"""Calls: what brokers ask each other, and clients ask brokers, beyond what Kafka has requests for (model/calls.py).

Rule 1: a call to this broker itself is the handler's coroutine: nothing is encoded.
Rule 2: an error comes back as the class that was raised there. What was fatal or damaged there is neither here.
Rule 3: a broker answers each connection in order. So a call that may wait has a connection of its own as long as it
        waits, of which there are few (LANES_MAX to each broker): who finds none waits for one. The others go where the
        fewest are under way: one that takes long, or is given up with its connection, costs few others.
Rule 4: no answer in time is RequestTimedOut or BrokerUnreachable: the call may have been carried out, or not.
        A call that finds no lane in time is TooBusy: it was not carried out.
Rule 5: who waits for a caller that goes away is told so (`Waits`), across brokers too: the connection on which the call
        waits at another broker is closed then.
Rule 6: the values of a call that came in as bytes are counted before it is decoded: too many are refused, many wait
        until the budget of bodies has room for them.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from runnel.broker.fetch import Waits
from runnel.broker.peers import Peers
from runnel.client.calls import question, result
from runnel.model.calls import Failure, Verb
from runnel.model.errors import InvalidRequest, RunnelError, TooBusy, UnsupportedVersion, as_value
from runnel.model.ids import BrokerId
from runnel.model.limits import MIB
from runnel.model.unreadable import UNREADABLE
from runnel.model.weight import VALUE_BYTES, marks, values
from runnel.net.bounds import Bounds
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

LANE: Final = "calls"  # beside what Kafka's own requests between brokers use
LANES: Final = 8  # connections to each other broker for calls that don't wait
LANES_MAX: Final = 64  # calls that wait at one other broker at once
TIMEOUT_MS: Final = 15_000
VALUES_MAX: Final = 100_000  # of one call: a list of 10,000 messages has some 40,000 that count
LIGHT_BYTES: Final = MIB  # calls that take less are not charged: they are gone at once

Q = TypeVar("Q")
A = TypeVar("A")


class _Served(NamedTuple):
    request: type[Any]
    handler: Callable[[Any, Waits], Awaitable[Any]]


class _Leaving:
    """Closes the connection of a call whose caller went away."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.end = close


class Calls:
    """The calls that this broker serves, and the way to those of the others."""

    def __init__(self, me: BrokerId, peers: Peers, bounds: Bounds | None = None, values_max: int = VALUES_MAX) -> None:
        self.me = me
        self._bounds = bounds or Bounds()
        self._values_max = values_max
        self._peers = peers
        self._served: dict[str, _Served] = {}
        self._lanes: dict[BrokerId, _Lanes] = defaultdict(_Lanes)

    def serve(self, verb: Verb[Q, A], handler: Callable[[Q], Awaitable[A]]) -> None:
        """Have this broker answer a verb. Each has one handler."""
        self.serve_waiting(verb, lambda request, _: handler(request))

    def serve_waiting(self, verb: Verb[Q, A], handler: Callable[[Q, Waits], Awaitable[A]]) -> None:
        """The same for a handler that waits, or gives what must not go to the dead: it learns if its caller goes."""
        assert verb.name not in self._served, f"{verb.name} is served already"
        self._served[verb.name] = _Served(verb.request, handler)

    async def ask(
        self,
        broker: BrokerId,
        verb: Verb[Q, A],
        request: Q,
        *,
        timeout_ms: int = TIMEOUT_MS,
        waits: Waits | None = None,
    ) -> A:
        """The answer of a broker, which may be this one; raises what it raised. `waits` ends with who wants to know."""
        waits = waits or Waits()
        if broker == self.me:
            answer: A = await self._handler(verb.name).handler(request, waits)
            return answer
        return await self._ask_other(broker, verb, request, timeout_ms, waits)

    async def answer(self, name: str, body: Any, waits: Waits) -> bytes:
        """What a handler here says to a call that came in as bytes."""
        served = self._handler(name)
        weight = self._weight(name, body)
        if weight <= LIGHT_BYTES:
            return await _answer(name, served, body, waits)
        async with self._bounds.room(self._bounds.bodies, weight, "inflight-bytes-max"):
            return await _answer(name, served, body, waits)

    def _weight(self, name: str, body: Any) -> int:
        """Bytes that a call takes once it is decoded, at most (rule 6)."""
        count = marks(body)
        if count > self._values_max:
            count = values(body, self._values_max)
            if count > self._values_max:
                self._bounds.met["call-values-max"] += 1
                raise InvalidRequest(
                    f"the call {name!r} has more than {self._values_max} values (call-values-max): send less at once"
                )
        return VALUE_BYTES * count

    def _handler(self, name: str) -> _Served:
        served = self._served.get(name)
        if served is None:
            raise UnsupportedVersion(f"broker {self.me} does not know the call {name!r}: use a newer broker")
        return served

    async def _ask_other(self, broker: BrokerId, verb: Verb[Q, A], request: Q, timeout_ms: int, waits: Waits) -> A:
        await asyncio.sleep(0)  # a request that was answered at once until now goes on in a task: timeouts need one
        asked, reply = question(verb, request), m.RunnelCallResponse
        async with self._lane(broker, verb, timeout_ms) as lane:
            leaving = _Leaving(lambda: self._peers.drop(broker, lane))
            if verb.waits:
                waits.begin(leaving)
            try:
                got = await self._peers.ask(broker, Api.RUNNEL_CALL, asked, reply, timeout_ms=timeout_ms, lane=lane)
            finally:
                waits.done(leaving)
        return result(verb, got, f"broker {broker}")

    @asynccontextmanager
    async def _lane(self, broker: BrokerId, verb: Verb[Any, Any], timeout_ms: int) -> AsyncIterator[str]:
        lanes = self._lanes[broker]
        if not verb.waits:
            with lanes.least_busy() as number:
                yield f"{LANE}-{number}"
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await lanes.room.acquire()
        except TimeoutError:
            raise TooBusy(f"{LANES_MAX} calls wait at broker {broker} already: try again") from None
        number = lanes.free.pop() if lanes.free else lanes.next()
        try:
            yield f"{LANE}-wait-{number}"
        finally:
            lanes.free.append(number)
            lanes.room.release()


class _Lanes:
    """The connections to one broker: how many calls are under way on each, and those that are left to wait on."""

    def __init__(self) -> None:
        self.busy = [0] * LANES
        self.room = asyncio.Semaphore(LANES_MAX)
        self.free: list[int] = []
        self._made = 0

    @contextmanager
    def least_busy(self) -> Iterator[int]:
        number = self.busy.index(min(self.busy))
        self.busy[number] += 1
        try:
            yield number
        finally:
            self.busy[number] -= 1

    def next(self) -> int:
        self._made += 1
        return self._made


async def _answer(name: str, served: _Served, body: Any, waits: Waits) -> bytes:
    try:
        request = msgspec.msgpack.decode(body, type=served.request)
    except UNREADABLE as error:
        raise InvalidRequest(f"the call {name!r} can't be read: {error}") from None
    return msgspec.msgpack.encode(await served.handler(request, waits))


def failure_of(error: RunnelError | None) -> Failure | None:
    """An error as a value, for answers about many things."""
    return None if error is None else Failure(type(as_value(error)).__name__, str(error))
