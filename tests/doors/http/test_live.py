"""One line for a page: what goes wrong with one subscription ends that one, and is told. The rest is in test_push."""

import asyncio
import json
from typing import Any, cast

import pytest

from runnel.broker.fetch import Waits
from runnel.doors.http import live
from runnel.doors.http.call import Call, PeerWaits
from runnel.doors.http.problems import PeerGone
from runnel.doors.http.socket import Socket

LIMIT_S = 30.0


class Page:
    """A page's end of the line."""

    def __init__(self, *said: dict[str, Any]) -> None:
        self._said = [json.dumps(one) for one in said]
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.leaves = asyncio.Event()

    async def receive(self) -> str:
        if self._said:
            return self._said.pop(0)
        await self.leaves.wait()
        raise PeerGone("it left")

    async def send(self, message: str) -> None:
        await self.heard.put(json.loads(message))


def test_an_error_that_nobody_foresaw_is_told_to_the_page_and_to_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(call: Call, name: str) -> Any:
        raise ValueError("a bug")

    async def whole(call: Call, name: str) -> Any:
        return {"topics": []}

    monkeypatch.setitem(live.VIEWS, "overview", broken)
    monkeypatch.setitem(live.VIEWS, "topics", whole)

    async def main() -> None:
        page = Page({"subscribe": {"id": "a", "kind": "overview"}}, {"subscribe": {"id": "b", "kind": "topics"}})
        line = live._Live(cast(Call, None), cast(Socket, page), cast(PeerWaits, Waits()))
        running = asyncio.ensure_future(line.run())
        async with asyncio.timeout(LIMIT_S):
            heard = {told["id"]: told["view"] for told in [await page.heard.get(), await page.heard.get()]}
            page.leaves.set()
            with pytest.raises(PeerGone):
                await running
        assert (heard["a"]["error"]["code"], heard["b"]) == ("internal", {"topics": []})

    asyncio.run(main())
    assert "a bug" in caplog.text
