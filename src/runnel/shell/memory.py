"""How the C library gives memory back to the system, and how often Python looks for garbage."""

import ctypes
import gc
import threading
from collections.abc import Callable
from typing import Final

from runnel.model.limits import MIB

KEPT_BYTES = 32 * MIB  # the most that glibc takes for the second
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8


def keep_freed_memory() -> None:
    """Keep some freed memory for the next buffer.

    A fetch takes buffers of megabytes and frees them at once. By default glibc returns each to the kernel, which clears
    every page of the next: measured, 75 % of the broker's time in a fetch. Where the C library has no mallopt (musl),
    nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(M_ARENA_MAX, 1)  # each thread's own would keep as much again, which nothing gives back


GIVE_BACK_S: Final = 10.0


def give_back_freed_memory() -> None:
    """Give what is not used to the system from time to time.

    What glibc keeps is bounded at the end of its heap alone: after 1,000 connections some small object above all their
    freed buffers kept 60 MB for ever. A thread of its own does it: 1 ms as a rule, 150 ms for 570 MB (measured). What
    is needed again soon, is cleared anew by the kernel: a few milliseconds every ten seconds.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        threading.Thread(target=_trim_for_ever, args=(trim, threading.Event()), name="memory", daemon=True).start()


def _trim_for_ever(trim: Callable[[int], int], never: threading.Event) -> None:
    while not never.wait(GIVE_BACK_S):
        trim(0)


YOUNG_MAX: Final = 50_000  # new objects that may refer to others, before garbage is looked for among them


def collect_seldom() -> None:
    """Look for garbage among more objects at a time than Python does by default (700), and never among modules.

    What a request makes is gone by itself when it is answered; hundreds of requests under way are some ten thousand
    objects that are looked at for nothing. With 11,574 messages a second over HTTP that was a fifth of the broker's
    time.
    """
    gc.set_threshold(YOUNG_MAX, 10, 10)
    gc.freeze()  # what was imported lives as long as the process


class LongLived:
    """Spares the garbage collector what lives long.

    A full collection looks at every object that there is, in one go, and no thread runs meanwhile. An open partition
    has some sixty: brokers with 10,000 of them on a busy machine were mute for seconds, now and then. So what was
    opened is frozen soon, which costs little; what was closed since is looked for once it is much.
    """

    OPENED_MAX: Final = 500  # may be looked at again and again
    CLOSED_MAX: Final = 2_000  # may lie about; 10 KB each

    def __init__(self) -> None:
        self._opened = 0
        self._closed = 0

    def note(self, more: int) -> None:
        """So many partitions were opened, or (below 0) closed.

        Those that are being closed are still in somebody's hands: they are looked for at the next call.
        """
        if self._closed >= self.CLOSED_MAX:
            gc.unfreeze()
            self._settle()
            self._closed = 0
        self._closed += max(0, -more)
        self._opened += max(0, more)
        if self._opened >= self.OPENED_MAX:
            self._settle()

    def _settle(self) -> None:
        gc.collect()  # of what is not frozen: garbage that is frozen would stay
        gc.freeze()
        self._opened = 0
