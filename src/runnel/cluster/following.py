"""Looks again whenever watched nodes have changed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from runnel.cluster.store import Store, Watch


async def follow(store: Store, paths: Sequence[str], look: Callable[[], Awaitable[None]]) -> None:
    """Call `look` now and after every change, one call at a time; ends with the first error.

    The watches are there before the first look, so nothing falls in between. Changes that come while `look` is busy
    are one more call.
    """
    watches = [await store.watch(path) for path in paths]
    try:
        while True:
            await look()
            await _any_changed(watches)
    finally:
        for watch in watches:
            watch.close()


async def _any_changed(watches: Sequence[Watch]) -> None:
    waiting = [asyncio.ensure_future(watch.changed()) for watch in watches]
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()
    finally:
        for future in waiting:
            future.cancel()  # what it has not told yet, it tells the next who asks
        await asyncio.gather(*waiting, return_exceptions=True)
