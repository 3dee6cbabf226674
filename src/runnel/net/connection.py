"""One client connection: frames with a 4-byte size come in, answers go out in the order of the requests.

Rule 1: a request holds up those behind it until it answers, or says with `let_pass` that they may start.
Rule 2: nothing is read that could not be kept: reading stops while requests wait behind one that holds the line, while
        the client does not take its answers, while too many are under way, and while `inbox` waits for memory.
Rule 3: whatever a handler raises costs this connection at most.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, cast

from runnel.model.errors import Fatal, InvalidRequest
from runnel.model.limits import KIB
from runnel.model.seams import Buffer
from runnel.net import eager
from runnel.net.bounds import Bounds, Unsent
from runnel.net.failures import log_failure
from runnel.net.inbox import Frame, Inbox, Supplies
from runnel.net.traffic import Traffic

PIPELINE_MAX = 64  # requests of one connection that may be under way; clients send 5 or so
WRITE_BUFFER_BYTES = 64 * KIB  # answers not taken by the client before its next request has to wait; not charged

logger = logging.getLogger("runnel.net")


class Handler(Protocol):
    """What a door does with the frames of one connection."""

    def handle(self, frame: memoryview) -> Coroutine[Any, Any, Sequence[Buffer] | None]:
        """The parts of the answer, or None where the protocol gives none."""
        ...

    def closed(self) -> None: ...


class Listener(Supplies, Protocol):
    """What a connection needs of the listener that accepted it."""

    traffic: Traffic
    bounds: Bounds

    def opened(self, connection: "Connection") -> Handler | None: ...

    def closed(self, connection: "Connection") -> None: ...

    def fatal(self, error: BaseException) -> None: ...


class _Request:
    """One request between its frame and its answer."""

    __slots__ = ("answered", "frame", "parts")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.answered = False
        self.parts: Sequence[Buffer] | None = None


class Connection(asyncio.BufferedProtocol):
    """The shell around a door's handler of one connection."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._traffic = listener.traffic
        self._loop: asyncio.AbstractEventLoop
        self._transport: asyncio.Transport | None = None
        self._handler: Handler | None = None
        self._inbox = Inbox(listener, self._refilled)
        self._requests: deque[_Request] = deque()
        self._holder: _Request | None = None
        self._reading = True
        self._writable = True
        self._closing = False
        self._unsent = Unsent(listener.bounds)
        self.peer = ""
        self.active_at = 0.0
        self.began_at = 0.0  # the frame that is arriving; 0.0 if there is none

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self.peer = _peer_of(transport)
        self._touch()
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._handler = self._listener.opened(self)
        if self._handler is None:
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbox.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._traffic.bytes_in += nbytes
        self._inbox.received(nbytes)
        self._touch()
        self._start_requests()

    def pause_writing(self) -> None:
        self._writable = False
        self._look_at_unsent()

    def resume_writing(self) -> None:
        self._writable = True
        self._unsent.is_now(0)
        self._touch()
        self._start_requests()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._inbox.close()
        self._unsent.is_now(0)
        if self._handler is not None:
            self._handler.closed()
        self._listener.closed(self)

    # --- what the door and the listener call

    def let_pass(self) -> None:
        """Said by the running request: those behind it may start before it is answered."""
        self._holder = None

    def close(self) -> None:
        """Start no more requests; close once those under way are answered and sent."""
        self._closing = True
        if self._transport is not None and not self._requests:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def busy(self) -> bool:
        """A request is being worked on, or its answer is not taken yet."""
        return bool(self._requests)

    @property
    def receiving(self) -> bool:
        """A frame has begun and is not complete, through no fault of ours."""
        return self._reading and self._inbox.unparsed > 0

    @property
    def stuck(self) -> bool:
        """The client does not take its answers. One that took some of them since the last look is merely slow."""
        if self._writable:
            return False
        before = self._unsent.size
        self._look_at_unsent()
        if self._unsent.size < before:
            self._touch()
        return True

    def _look_at_unsent(self) -> None:
        if self._transport is not None:
            self._unsent.is_now(self._transport.get_write_buffer_size())

    # --- frames in

    def _start_requests(self) -> None:
        """Start every request that is complete and may start; then read on, or not."""
        try:
            while self._may_start() and (frame := self._inbox.next()) is not None:
                self._start(frame)
        except InvalidRequest as error:
            logger.warning("closed the connection of %s: it announced %s", self.peer, error)
            self.abort()
            return
        self._inbox.settle()
        if not self.began_at and self._inbox.unparsed:
            self.began_at = self._loop.time()
        self._read_on()

    def _may_start(self) -> bool:
        return (
            self._holder is None
            and self._writable
            and self._transport is not None
            and len(self._requests) < PIPELINE_MAX
            and not self._closing
            and not self._transport.is_closing()
        )

    def _refilled(self) -> None:
        # Not at once: the request that gave the bytes back may itself have been started this way, and so on.
        self._loop.call_soon(self._start_requests)

    def _read_on(self) -> None:
        """Read as long as what arrives can be used. A held line alone is no reason to stop: so a client that went
        away is noticed; but what it sends meanwhile is."""
        wanted = not self._inbox.waiting and (self._may_start() or (self._writable and self._inbox.unparsed == 0))
        if self._transport is None or wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            # What could not arrive until now is not late.
            self.began_at = self._loop.time() if self._inbox.unparsed else 0.0
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # --- answers out

    def _start(self, frame: Frame) -> None:
        assert self._handler is not None
        self.began_at = 0.0
        request = _Request(frame)
        self._requests.append(request)
        self._holder = request
        try:
            parts, task = eager.start(self._handler.handle(frame.body))
        except Exception as error:
            self._failed(request, error)
        else:
            if task is None:
                self._answer(request, parts)
            else:
                task.add_done_callback(lambda done: self._task_ended(request, done))

    def _task_ended(self, request: _Request, task: "asyncio.Task[Sequence[Buffer] | None]") -> None:
        if task.cancelled():
            self._failed(request, asyncio.CancelledError())
        elif error := task.exception():
            self._failed(request, error)
        else:
            self._answer(request, task.result())
        self._start_requests()

    def _answer(self, request: _Request, parts: Sequence[Buffer] | None) -> None:
        request.answered = True
        request.parts = parts
        if self._holder is request:
            self._holder = None
        requests = self._requests
        while requests and requests[0].answered:
            self._send(requests.popleft())
        if self._closing:
            self.close()

    def _send(self, request: _Request) -> None:
        self._traffic.requests += 1
        if request.parts and self._transport is not None:
            self._traffic.bytes_out += sum(map(len, request.parts))
            self._transport.writelines(request.parts)
            if not self._writable:
                self._look_at_unsent()
        self._inbox.answered(request.frame)

    def _failed(self, request: _Request, error: BaseException) -> None:
        match error:
            case asyncio.CancelledError():
                pass  # the broker stops
            case InvalidRequest():
                logger.warning("closed the connection of %s: %s", self.peer, error)
            case Fatal():
                self._listener.fatal(error)
            case _:
                log_failure(logger, f"closed the connection of {self.peer}: a request failed", error)
        self.abort()
        self._answer(request, None)

    def _touch(self) -> None:
        self.active_at = self._loop.time()


def _peer_of(transport: asyncio.Transport) -> str:
    address = transport.get_extra_info("peername")
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a client"
