"""A WebSocket, as an operation sees it."""

import msgspec

from runnel.doors.http.problems import PROBLEM_JSON, PeerGone, headers_of, problem_of
from runnel.model.errors import RunnelError
from runnel.net.http import Receive, Send

ENCODE = msgspec.json.Encoder().encode
REFUSED = 1008  # policy violation: what was asked for can't be had
DONE = 1000


class Socket:
    """Messages both ways. Whoever waits for one when the client goes away gets PeerGone."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._connected = False
        self._accepted = False
        self._closed = False

    async def accept(self, subprotocol: str | None = None) -> None:
        await self._connect()
        self._accepted = True
        await self._send({"type": "websocket.accept", "subprotocol": subprotocol})

    async def receive(self) -> str | bytes:
        """The next message."""
        message = await self._receive()
        if message["type"] != "websocket.receive":
            self._closed = True
            raise PeerGone("the client closed the WebSocket")
        text: str | None = message.get("text")
        return text if text is not None else bytes(message["bytes"])

    async def send(self, message: str | bytes) -> None:
        """Returns once the client's side of the line takes it: a slow client makes its sender wait, not its memory."""
        if not self._closed:
            kind = "text" if isinstance(message, str) else "bytes"
            await self._send({"type": "websocket.send", kind: message})

    async def close(self, code: int = DONE, reason: str = "") -> None:
        if self._accepted and not self._closed:
            self._closed = True
            await self._send({"type": "websocket.close", "code": code, "reason": reason})

    async def fail(self, error: RunnelError) -> None:
        """Say why not: as an answer to the handshake, or with the close."""
        if self._accepted:
            await self.close(REFUSED, str(error)[:120])
            return
        await self._connect()
        problem = problem_of(error)
        content = ENCODE(problem)
        headers = [(b"content-type", PROBLEM_JSON), *headers_of(error, problem.status)]
        start = {"type": "websocket.http.response.start", "status": problem.status, "headers": headers}
        await self._send(start)
        await self._send({"type": "websocket.http.response.body", "body": content})

    async def _connect(self) -> None:
        if not self._connected:
            self._connected = True
            await self._receive()  # websocket.connect
