"""Who connects just when a listener stops is sent away: nobody would ever answer."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from runnel.net.http import HttpLimits, HttpListener
from runnel.net.listener import FramedListener, ListenerLimits

TURNS_MAX = 6  # of the loop, within which a connection is let in


class Silent:
    """A door at which nobody says anything."""

    async def handle(self, frame: memoryview) -> None:
        raise AssertionError("nothing is asked here")

    def closed(self) -> None:
        """Nothing was opened."""


def _fatal(error: BaseException) -> None:
    raise error


def framed() -> Any:
    return FramedListener(lambda connection: Silent(), ListenerLimits(), _fatal)


def http() -> Any:
    async def app(*_: object) -> None:
        raise AssertionError("nothing is asked here")

    return HttpListener(app, HttpLimits(), _fatal)


async def ended(client: socket.socket) -> bool:
    async with asyncio.timeout(60):
        try:
            return await asyncio.get_running_loop().sock_recv(client, 1) == b""
        except ConnectionError:
            return True


@pytest.mark.parametrize("turns", range(TURNS_MAX))
@pytest.mark.parametrize("make", [framed, http])
def test_who_comes_while_it_stops_is_sent_away(make: Callable[[], Any], turns: int) -> None:
    async def main() -> None:
        listener = make()
        address = await listener.bind("127.0.0.1", 0)
        await listener.accept()
        with socket.create_connection(address) as client:
            client.setblocking(False)
            for _ in range(turns):
                await asyncio.sleep(0)
            await listener.stop(5.0)
            assert await ended(client)

    uvloop.run(main())  # asyncio's own loop loses such a connection before anybody hears of it
