"""The reader of what a command prints: a person, a file, or a program at the other end of a pipe.

Rule: a command that waits for messages ends as soon as nobody reads it any more, also while there is nothing to print.
      Printing into a pipe says that the line is in the pipe: not that anybody has read it.
"""

import asyncio
import os
import select
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


def is_program() -> bool:
    """Whether stdout leads to another program: some start their children with a pair of sockets instead of a pipe."""
    mode = os.fstat(sys.stdout.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


@asynccontextmanager
async def while_read() -> AsyncIterator[None]:
    """A block that ends by BrokenPipeError at the moment when the program that reads stdout is gone."""
    if not is_program():
        yield
        return
    loop, work, gone = asyncio.get_running_loop(), asyncio.current_task(), False
    assert work is not None

    def end() -> None:
        nonlocal gone
        gone = True
        loop.remove_reader(watch.fileno())
        work.cancel()

    with select.epoll() as watch:
        watch.register(sys.stdout.fileno(), 0)  # what is told without being asked for: an error, or a hang-up
        loop.add_reader(watch.fileno(), end)
        try:
            yield
        except asyncio.CancelledError:
            if not gone:
                raise
            raise BrokenPipeError("nobody reads stdout any more") from None
        finally:
            loop.remove_reader(watch.fileno())
