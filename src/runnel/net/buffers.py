"""Receive buffers, used again only when nobody can see their bytes any more.

A frame is a view into its buffer, and whoever handles it may keep slices. A bytearray refuses to change its size while
any view of it lives: `take` asks it, so that a buffer with a view left over goes to the garbage collector, not to the
next connection. (It asks then and not in `give`, because the event loop itself holds a view while it reports a read.)
"""

from runnel.model.limits import KIB, MIB

SMALL_BYTES = 64 * KIB  # one read of a socket; an idle connection holds none
SIZES = (SMALL_BYTES, 256 * KIB, MIB, 4 * MIB)  # above, buffers are rare: made to measure, and dropped
KEPT_BYTES_MAX = 32 * MIB


class BufferPool:
    """Buffers of a few sizes, for all connections of a broker."""

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = {size: [] for size in SIZES}
        self._unused = dict.fromkeys(SIZES, 0)  # as many were free all the time since the last look
        self._kept_bytes = 0

    def take(self, size: int) -> bytearray:
        """A buffer of exactly `size` bytes, with old bytes in it if that is one of the sizes."""
        free = self._free.get(size, ())
        while free:
            self._kept_bytes -= size
            if _unseen(buffer := free.pop()):
                self._unused[size] = min(self._unused[size], len(free))
                return buffer
        return bytearray(size)

    def give(self, buffer: bytearray) -> None:
        """Take a buffer back for the next who needs one."""
        kind = len(buffer)
        free = self._free.get(kind)
        if free is not None and self._kept_bytes + kind <= KEPT_BYTES_MAX:
            self._kept_bytes += kind
            free.append(buffer)

    def let_go(self) -> None:
        """Give up what was not needed since this was said before: a thousand connections that end leave many."""
        for size, free in self._free.items():
            idle = min(self._unused[size], len(free))
            del free[:idle]  # the last ones go round
            self._kept_bytes -= idle * size
            self._unused[size] = len(free)


def rounded(size: int) -> int:
    """The smallest of the sizes that holds so many bytes, or the very number."""
    return next((known for known in SIZES if size <= known), size)


def _unseen(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
