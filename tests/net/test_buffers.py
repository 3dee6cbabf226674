"""Buffers go round, and those that nobody needs any more are let go."""

from runnel.net.buffers import SMALL_BYTES, BufferPool


def test_buffers_that_were_not_needed_for_a_while_are_let_go() -> None:
    pool = BufferPool()
    taken = [pool.take(SMALL_BYTES) for _ in range(10)]
    known = set(map(id, taken))
    for buffer in taken:
        pool.give(buffer)
    pool.let_go()  # they were all in use since the last look
    busy = [pool.take(SMALL_BYTES) for _ in range(3)]
    assert set(map(id, busy)) <= known
    for buffer in busy:
        pool.give(buffer)
    pool.let_go()  # seven were free all the time
    again = [pool.take(SMALL_BYTES) for _ in range(4)]
    assert sum(id(buffer) in set(map(id, busy)) for buffer in again) == 3
