"""One client connection: frames with a 4-byte size come in, answers go out in the order of the requests.

Rule 1: a request holds up those behind it until it answers, or says with `let_pass` that they may start.
Rule 2: nothing is read that could not be kept: the bytes of a frame are reserved before the frame is received, reading
        stops while a request holds the line, while the client does not take its answers, and while too many wait.
Rule 3: whatever a handler raises costs this connection at most.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, cast

from runnel.model.errors import Fatal, InvalidRequest
from runnel.model.seams import Buffer
from runnel.net import eager
from runnel.net.budget import ByteBudget
from runnel.net.buffers import SMALL_BYTES, BufferPool

PIPELINE_MAX = 64  # requests of one connection that may be under way; clients send 5 or so
WRITE_BUFFER_BYTES = 1024 * 1024  # answers not taken by the client before its next request has to wait

logger = logging.getLogger("runnel.net")


class Handler(Protocol):
    """What a door does with the frames of one connection."""

    def handle(self, frame: memoryview) -> Coroutine[Any, Any, Sequence[Buffer] | None]:
        """The parts of the answer, or None where the protocol gives none."""
        ...

    def closed(self) -> None: ...


class Listener(Protocol):
    """What a connection needs of the listener that accepted it."""

    frame_bytes_max: int
    budget: ByteBudget
    buffers: BufferPool

    def opened(self, connection: "Connection") -> Handler | None: ...

    def closed(self, connection: "Connection") -> None: ...

    def fatal(self, error: BaseException) -> None: ...


class _Chunk:
    """A receive buffer and how many frames in it are not answered yet."""

    __slots__ = ("data", "filled", "frames", "parsed")

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.filled = 0
        self.parsed = 0
        self.frames = 0

    @property
    def unparsed(self) -> int:
        return self.filled - self.parsed


class _Request:
    """One request between its frame and its answer."""

    __slots__ = ("answered", "bytes_reserved", "chunk", "parts")

    def __init__(self, chunk: _Chunk, bytes_reserved: int) -> None:
        self.chunk = chunk
        self.bytes_reserved = bytes_reserved
        self.answered = False
        self.parts: Sequence[Buffer] | None = None


class Connection(asyncio.BufferedProtocol):
    """The shell around a door's handler of one connection."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._handler: Handler | None = None
        self._chunk: _Chunk | None = None
        self._reserved = 0  # bytes reserved for the frame that is being received
        self._awaits_budget = False
        self._requests: deque[_Request] = deque()
        self._holder: _Request | None = None
        self._reading = True
        self._writable = True
        self._closing = False
        self.peer = ""
        self.active_at = 0.0

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self.peer = _peer_of(transport)
        self._touch()
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._handler = self._listener.opened(self)
        if self._handler is None:
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        chunk = self._chunk
        if chunk is None:
            chunk = self._chunk = _Chunk(self._listener.buffers.take(SMALL_BYTES))
        return memoryview(chunk.data)[chunk.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        assert self._chunk is not None
        self._chunk.filled += nbytes
        self._touch()
        self._start_requests()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._touch()
        self._start_requests()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self._awaits_budget:
            self._listener.budget.release(self._reserved)
        else:
            self._listener.budget.withdraw(self._budget_granted)
        self._reserved = 0
        self._awaits_budget = False
        self._chunk = None
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
        return self._chunk is not None and self._chunk.unparsed > 0 and self._reading

    @property
    def stuck(self) -> bool:
        """The client does not take its answers."""
        return not self._writable

    # --- frames in

    def _start_requests(self) -> None:
        """Start every request that is complete and may start; then read on, or not."""
        chunk = self._chunk
        while chunk is not None and self._may_start() and chunk.unparsed >= 4:
            begin = chunk.parsed
            size = int.from_bytes(chunk.data[begin : begin + 4], "big", signed=True)
            if not 0 < size <= self._listener.frame_bytes_max:
                self._refuse_frame(size)
                return
            if not self._reserve(4 + size):
                break
            if chunk.unparsed < 4 + size:
                chunk = self._make_room(chunk, 4 + size)
                break
            chunk.parsed += 4 + size
            chunk.frames += 1
            reserved, self._reserved = self._reserved, 0
            self._start(memoryview(chunk.data)[begin + 4 : chunk.parsed], _Request(chunk, reserved))
            chunk = self._chunk
        self._leave_chunk()
        self._read_on(self._may_start() and not self._awaits_budget)

    def _may_start(self) -> bool:
        return (
            self._holder is None
            and self._writable
            and self._transport is not None
            and len(self._requests) < PIPELINE_MAX
            and not self._closing
            and not self._transport.is_closing()
        )

    def _reserve(self, size: int) -> bool:
        if self._reserved or self._awaits_budget:
            return not self._awaits_budget
        self._reserved = size
        self._awaits_budget = not self._listener.budget.reserve(size, self._budget_granted)
        return not self._awaits_budget

    def _budget_granted(self) -> None:
        self._awaits_budget = False
        # Not at once: the request that gave the bytes back may itself have been started this way, and so on.
        asyncio.get_running_loop().call_soon(self._start_requests)

    def _make_room(self, chunk: _Chunk, size: int) -> _Chunk:
        """See to it that a frame of this size fits behind what has been received of it."""
        if len(chunk.data) - chunk.parsed >= size:
            return chunk
        larger = _Chunk(self._listener.buffers.take(size))
        larger.filled = chunk.unparsed
        larger.data[: larger.filled] = memoryview(chunk.data)[chunk.parsed : chunk.filled]
        self._chunk = larger
        self._retire(chunk)
        return larger

    def _leave_chunk(self) -> None:
        """Give up a buffer that is all parsed, so that an idle connection holds none; never end without room."""
        chunk = self._chunk
        if chunk is None:
            return
        if chunk.unparsed == 0:
            self._chunk = None
            self._retire(chunk)
        elif chunk.filled == len(chunk.data):
            self._make_room(chunk, len(chunk.data) - chunk.parsed + SMALL_BYTES)

    def _retire(self, chunk: _Chunk) -> None:
        if chunk.frames == 0 and chunk is not self._chunk:
            self._listener.buffers.give(chunk.data)

    def _read_on(self, wanted: bool) -> None:
        if self._transport is None or wanted == self._reading:
            return
        # Without pressure reading goes on while a request holds the line: so a client that went away is noticed.
        if not wanted and self._chunk is None and self._writable and not self._awaits_budget:
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _refuse_frame(self, size: int) -> None:
        logger.warning(
            "closed the connection of %s: it announced a frame of %d bytes, allowed are 1 to %d",
            self.peer, size, self._listener.frame_bytes_max,
        )  # fmt: skip
        self.abort()

    # --- answers out

    def _start(self, frame: memoryview, request: _Request) -> None:
        assert self._handler is not None
        self._requests.append(request)
        self._holder = request
        try:
            parts, task = eager.start(self._handler.handle(frame))
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
        if request.parts and self._transport is not None:
            self._transport.writelines(request.parts)
        self._listener.budget.release(request.bytes_reserved)
        request.chunk.frames -= 1
        self._retire(request.chunk)

    def _failed(self, request: _Request, error: BaseException) -> None:
        match error:
            case asyncio.CancelledError():
                pass  # the broker stops
            case InvalidRequest():
                logger.warning("closed the connection of %s: %s", self.peer, error)
            case Fatal():
                self._listener.fatal(error)
            case _:
                logger.error("closed the connection of %s: a request failed", self.peer, exc_info=error)
        self.abort()
        self._answer(request, None)

    def _touch(self) -> None:
        self.active_at = asyncio.get_running_loop().time()


def _peer_of(transport: asyncio.Transport) -> str:
    address = transport.get_extra_info("peername")
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a client"
