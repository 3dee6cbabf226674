"""The receiving half of a connection: bytes in, frames out.

Rule 1: memory follows what has arrived, never what was promised. A buffer grows fourfold at the most when it is full.
Rule 2: a buffer above the small size is paid for while it is held; a frame in a small one from when it is started.
Rule 3: a frame is a view into its buffer. The buffer goes round again when all its frames are answered.
Rule 4: between frames a connection holds no buffer, and a few bytes of an unfinished one if need be.

A connection that sent a large frame gets a large buffer for the next one at once: a stream of them is not copied.
"""

from collections.abc import Callable
from typing import Protocol

from runnel.model.errors import InvalidRequest
from runnel.model.limits import KIB
from runnel.net.budget import ByteBudget, Granted
from runnel.net.buffers import SMALL_BYTES, BufferPool, rounded

SIZE_BYTES = 4
REST_BYTES_MAX = 4 * KIB  # the beginning of a frame up to this is moved to a buffer of its own size
GROWTH = 4


class Supplies(Protocol):
    """What the connections of a listener share."""

    frame_bytes_max: int
    budget: ByteBudget
    buffers: BufferPool


class Chunk:
    """A receive buffer: what has arrived, what was parsed, and how many of its frames are not answered."""

    __slots__ = ("data", "filled", "frames", "paid", "parsed")

    def __init__(self, data: bytearray, paid: int = 0) -> None:
        self.data = data
        self.filled = 0
        self.parsed = 0
        self.frames = 0
        self.paid = paid

    @property
    def unparsed(self) -> int:
        return self.filled - self.parsed

    @property
    def full(self) -> bool:
        return self.filled == len(self.data)

    def take_over(self, other: "Chunk") -> None:
        """Begin with what the other has not parsed."""
        self.filled = other.unparsed
        self.data[: self.filled] = memoryview(other.data)[other.parsed : other.filled]


class Frame:
    """One frame, until it is answered."""

    __slots__ = ("body", "chunk", "paid")

    def __init__(self, body: memoryview, chunk: Chunk, paid: int) -> None:
        self.body = body
        self.chunk = chunk
        self.paid = paid


class Inbox:
    """Cuts what arrives on one connection into frames."""

    def __init__(self, supplies: Supplies, refilled: Callable[[], None]) -> None:
        self._supplies = supplies
        self._refilled = refilled  # called when bytes that were waited for have been granted
        self._chunk: Chunk | None = None
        self._usual_bytes = SMALL_BYTES
        self._asked_bytes = 0  # waiting in line for so many
        self._granted_bytes = 0

    @property
    def waiting(self) -> bool:
        """Nothing may be received before bytes are granted."""
        return self._asked_bytes > 0

    @property
    def unparsed(self) -> int:
        return 0 if self._chunk is None else self._chunk.unparsed

    def room(self) -> memoryview:
        """Where the next bytes go."""
        chunk = self._chunk
        if chunk is None or chunk.full:
            chunk = self._fresh(chunk)
        return memoryview(chunk.data)[chunk.filled :]

    def received(self, count: int) -> None:
        assert self._chunk is not None
        self._chunk.filled += count

    def next(self) -> Frame | None:
        """The next whole frame, if it has arrived and can be paid for; InvalidRequest for a size that can't be."""
        chunk = self._chunk
        if chunk is None or chunk.unparsed < SIZE_BYTES or self.waiting:
            return None
        begin = chunk.parsed
        size = int.from_bytes(chunk.data[begin : begin + SIZE_BYTES], "big", signed=True)
        if not 0 < size <= self._supplies.frame_bytes_max:
            raise InvalidRequest(f"a frame of {size} bytes; allowed are 1 to {self._supplies.frame_bytes_max}")
        total = SIZE_BYTES + size
        if chunk.unparsed < total:
            if chunk.full:
                self._grow(chunk, total)
            return None
        paid = 0 if chunk.paid else total
        if paid and not self._pay(paid, self._supplies.budget.reserve):
            return None
        if chunk.paid:
            self._supplies.budget.arrived(self._granted)
        self._granted_bytes = 0
        chunk.parsed += total
        chunk.frames += 1
        self._usual_bytes = rounded(total)
        return Frame(memoryview(chunk.data)[begin + SIZE_BYTES : chunk.parsed], chunk, paid)

    def settle(self) -> None:
        """All frames that can be had now have been had: hold on to as little as possible."""
        chunk = self._chunk
        if chunk is None or self.waiting:
            return
        if chunk.unparsed == 0:
            self._chunk = None
            self._retire(chunk)
        elif chunk.unparsed <= REST_BYTES_MAX < len(chunk.data):
            rest = Chunk(bytearray(chunk.unparsed))
            rest.take_over(chunk)
            self._replace(chunk, rest)

    def answered(self, frame: Frame) -> None:
        """The frame's bytes are not needed any more."""
        frame.body.release()
        frame.chunk.frames -= 1
        self._retire(frame.chunk)
        if frame.paid:
            self._supplies.budget.release(frame.paid)

    def close(self) -> None:
        """The connection is gone; frames that are not answered yet keep their buffers until they are."""
        budget = self._supplies.budget
        if self.waiting:
            budget.withdraw(self._granted)
        budget.release(self._granted_bytes)
        budget.arrived(self._granted)
        self._asked_bytes = self._granted_bytes = 0
        chunk, self._chunk = self._chunk, None
        if chunk is not None:
            self._retire(chunk)

    # --- buffers

    def _fresh(self, before: Chunk | None) -> Chunk:
        """A buffer as large as this connection usually needs, beginning with what is left from before."""
        size = self._usual_bytes
        if size > SMALL_BYTES and not self._supplies.budget.take_large(size):
            size = SMALL_BYTES
        chunk = Chunk(self._supplies.buffers.take(size), paid=size if size > SMALL_BYTES else 0)
        self._replace(before, chunk)
        return chunk

    def _grow(self, chunk: Chunk, total: int) -> None:
        """A frame is longer than its buffer: give it a larger one, or wait until that can be paid."""
        size = rounded(min(total, max(GROWTH * chunk.unparsed, SMALL_BYTES)))
        if size > SMALL_BYTES and not self._pay(size, self._supplies.budget.reserve_large):
            return
        self._granted_bytes = 0
        self._replace(chunk, Chunk(self._supplies.buffers.take(size), paid=size if size > SMALL_BYTES else 0))

    def _replace(self, before: Chunk | None, chunk: Chunk) -> None:
        if before is not None and before is not chunk:
            if chunk.filled == 0:
                chunk.take_over(before)
            before.parsed = before.filled
        self._chunk = chunk
        if before is not None:
            self._retire(before)

    def _retire(self, chunk: Chunk) -> None:
        """Give a buffer back once nobody parses it and nobody handles its frames."""
        if chunk.frames or chunk is self._chunk:
            return
        self._supplies.buffers.give(chunk.data)
        paid, chunk.paid = chunk.paid, 0
        if paid:
            self._supplies.budget.release(paid)

    # --- the budget

    def _pay(self, size: int, reserve: Callable[[int, Granted], bool]) -> bool:
        """Whether so many bytes are ours now; if not, `refilled` is called when they are."""
        if self._granted_bytes >= size:
            return True
        if reserve(size, self._granted):
            self._granted_bytes = size
            return True
        self._asked_bytes = size
        return False

    def _granted(self) -> None:
        self._granted_bytes, self._asked_bytes = self._asked_bytes, 0
        self._refilled()
