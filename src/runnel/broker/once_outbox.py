"""Messages on their way to a partition that another broker leads: one call at a time carries all that wait.

Rule 1: what fails as a whole fails for each that was in the call; whoever sent it may send it again.
Rule 2: a call carries a bounded number of bytes, and at least one sender's messages.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from runnel.model.errors import RequestTimedOut, RunnelError, as_value
from runnel.model.limits import MIB
from runnel.model.once import OnceMessage, Placed

CALL_BYTES: Final = 4 * MIB

Result: TypeAlias = Placed | RunnelError
Send: TypeAlias = Callable[[list[OnceMessage], int], Awaitable[list[Result]]]


class _Parcel(NamedTuple):
    messages: list[OnceMessage]
    size: int
    timeout_ms: int
    future: "asyncio.Future[list[Result]]"


class Outbox:
    """Of one partition."""

    def __init__(self, send: Send, on_empty: Callable[[], None]) -> None:
        self._send = send
        self._on_empty = on_empty
        self._waiting: deque[_Parcel] = deque()
        self._worker: asyncio.Task[None] | None = None

    def put(self, messages: list[OnceMessage], timeout_ms: int) -> "asyncio.Future[list[Result]]":
        """What becomes of these messages."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Result]] = loop.create_future()
        size = sum(len(one.value or b"") + len(one.key or b"") for one in messages)
        self._waiting.append(_Parcel(messages, size, timeout_ms, future))
        if self._worker is None:
            self._worker = loop.create_task(self._work())
        return future

    async def _work(self) -> None:
        load: list[_Parcel] = []
        try:
            while self._waiting:
                load = self._next_load()
                await self._carry(load)
        finally:
            for parcel in (*load, *self._waiting):
                _fail(parcel, RequestTimedOut("the call was ended before it was answered: send again"))
            self._worker = None
            self._on_empty()

    def _next_load(self) -> list[_Parcel]:
        load: list[_Parcel] = []
        room = CALL_BYTES
        while self._waiting and (not load or self._waiting[0].size <= room):
            parcel = self._waiting.popleft()
            room -= parcel.size
            if not parcel.future.done():
                load.append(parcel)
        return load

    async def _carry(self, load: list[_Parcel]) -> None:
        if not load:
            return
        messages = [message for parcel in load for message in parcel.messages]
        try:
            results = iter(await self._send(messages, max(parcel.timeout_ms for parcel in load)))
        except RunnelError as error:
            for parcel in load:
                _fail(parcel, error)
            return
        for parcel in load:
            own = [next(results) for _ in parcel.messages]
            if not parcel.future.done():
                parcel.future.set_result(own)


def _fail(parcel: _Parcel, error: RunnelError) -> None:
    if not parcel.future.done():
        parcel.future.set_exception(as_value(error))
