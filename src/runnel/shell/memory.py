"""How the C library gives memory back to the system."""

import ctypes

from runnel.model.limits import MIB

KEPT_BYTES = 32 * MIB  # the most that glibc takes for the second
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


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
