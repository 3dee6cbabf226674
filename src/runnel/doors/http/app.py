"""The application: addresses to operations, errors to problems.

Rule 1: a body is counted while it arrives; what is above the limit is refused then, not when it is all there.
Rule 2: the bodies of all requests under way are bounded together, with what they become when they are decoded: that
        is told from their bytes, before it is done.
Rule 3: a page of another site gets nothing done, though a browser would send its requests here: neither under the
        site's own name (`pages.py`), nor under one that was made to point here (`hosts.py`).
"""

from collections.abc import Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final

import msgspec

from runnel.doors.http.call import Call
from runnel.doors.http.door import HttpDoor
from runnel.doors.http.operation import SOCKET, Operation, Reply, Stream
from runnel.doors.http.pages import Page, page_of
from runnel.doors.http.problems import (
    PROBLEM_JSON,
    BodyTooLarge,
    MethodNotAllowed,
    NoSuchPath,
    PeerGone,
    UnexpectedBody,
    headers_of,
    problem_of,
)
from runnel.doors.http.routes import Found, Routes
from runnel.doors.http.socket import Socket
from runnel.model.errors import Fatal, RunnelError, TooBusy
from runnel.model.weight import json_weight
from runnel.net.http import Receive, Scope, Send

ENCODER: Final = msgspec.json.Encoder()
JSON_TYPE: Final = (b"content-type", b"application/json")
NO_CONTENT: Final = 204


class HttpApp:
    """What the listener hands requests to."""

    def __init__(self, door: HttpDoor, operations: Iterable[Operation]) -> None:
        self._door = door
        self._routes = Routes(operations)
        self._bodies = door.bounds.bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await self._converse(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(self._door, scope)
        page = page_of(call.headers)
        headers = self._door.pages.answer_headers(page)
        try:
            status, result = await self._serve(call, page, receive)
            if isinstance(result, Stream | Reply) or result is None:
                content = b""
            else:
                content = ENCODER.encode(result)
                self._check_room(scope["method"], content)
        except PeerGone:
            return
        except Fatal:
            raise  # the listener ends the broker
        except RunnelError as error:
            await self._send_problem(send, error, headers)
            return
        if isinstance(result, Stream):
            await self._send_stream(send, call, result, headers)
        elif isinstance(result, Reply):
            kind = (b"content-type", result.content_type.encode())
            await self._send(send, result.status, [kind, *result.headers, *headers], result.content)
        elif result is None:
            await self._send(send, NO_CONTENT, headers, b"")
        else:
            await self._send(send, status, [JSON_TYPE, *headers], content)

    async def _serve(self, call: Call, page: Page, receive: Receive) -> tuple[int, Any]:
        """The usual status of what was asked for, and the result."""
        scope, pages = call.scope, self._door.pages
        self._check_caller(call, page)
        found, method = self._routes.find(scope["raw_path"]), scope["method"]
        if method == "OPTIONS" and found is not None and pages.lists(page):
            return NO_CONTENT, Reply(b"", status=NO_CONTENT, headers=pages.preflight_headers(_methods(found)))
        operation = _operation(method, found, scope["path"])
        if operation.changing_get:
            pages.check_change(page)
        return operation.status, await self._run(operation, call, found.values if found else [], receive)

    def _check_caller(self, call: Call, page: Page) -> None:
        self._door.hosts.check([value for name, value in call.scope["headers"] if name == b"host"])
        self._door.pages.check(page)

    async def _run(self, operation: Operation, call: Call, values: list[str], receive: Receive) -> Any:
        query = call.scope["query_string"]
        if not operation.takes_body:
            await self._must_have_no_body(operation, call, receive)
            return await operation.bind(call, values, query, b"")
        body = await self._body(call, receive)
        try:
            with self._decoded(body):
                return await operation.bind(call, values, query, body)
        finally:
            self._bodies.release(len(body))

    @contextmanager
    def _decoded(self, body: bytes) -> Iterator[None]:
        """Charge what a body becomes when it is decoded (rule 2)."""
        weight = json_weight(body)
        if weight > self._bodies.limit:
            self._door.bounds.met["inflight-bytes-max"] += 1
            raise BodyTooLarge(f"the body has too many elements: {len(body)} bytes of lists, objects and commas")
        with self._door.bounds.body(weight):
            yield

    def _check_room(self, method: str, content: bytes) -> None:
        """Refuse a large answer while clients do not take theirs. What was done is told all the same."""
        if method == "GET" and self._door.bounds.share_of_answers(len(content)) < len(content):
            raise TooBusy("clients have as many bytes of answers to take as they may: try again, or ask for less")

    async def _must_have_no_body(self, operation: Operation, call: Call, receive: Receive) -> None:
        """Refuse a body where none is taken: its sender may rely on what it says."""
        headers = call.headers
        size = int(headers.get(b"content-length", b"0"))
        if b"transfer-encoding" in headers:
            size = len(await self._body(call, receive))
            self._bodies.release(size)
        if size:
            raise UnexpectedBody(f"{operation.method} {operation.path} takes no body, and {size} bytes came")

    async def _body(self, call: Call, receive: Receive) -> bytes:
        """The whole body; its bytes are counted as held until the caller gives them back."""
        limit = self._door.body_bytes_max
        for name, value in call.scope["headers"]:
            if name == b"content-length" and len(value) > 3 and int(value) > limit:
                raise _too_large(limit)
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise PeerGone("the client went away while it sent its request")
                part = message["body"]
                self._door.bounds.take_body(len(part))
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                if not message["more_body"]:
                    return b"".join((*parts, part)) if parts else part
                parts.append(part)
        except BaseException:
            self._bodies.release(size)
            raise

    async def _send(self, send: Send, status: int, headers: list[tuple[bytes, bytes]], content: bytes) -> None:
        if status != NO_CONTENT:
            headers.append((b"content-length", b"%d" % len(content)))
        self._door.traffic.bytes_out += len(content)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _send_problem(self, send: Send, error: RunnelError, more: list[tuple[bytes, bytes]]) -> None:
        problem = problem_of(error)
        headers = [(b"content-type", PROBLEM_JSON), *headers_of(error, problem.status), *more]
        await self._send(send, problem.status, headers, ENCODER.encode(problem))

    async def _send_stream(self, send: Send, call: Call, stream: Stream, more: list[tuple[bytes, bytes]]) -> None:
        kind = (b"content-type", stream.content_type.encode())
        await send({"type": "http.response.start", "status": 200, "headers": [kind, *stream.headers, *more]})
        async with aclosing(stream.chunks) as chunks:
            if call.scope["method"] != "HEAD":
                await send({"type": "http.response.body", "body": b"", "more_body": True})  # the head goes at once
                async for chunk in chunks:
                    if call.peer.over:
                        break
                    self._door.traffic.bytes_out += len(chunk)
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _converse(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = Socket(receive, send)
        try:
            found = self._routes.find(scope["raw_path"])
            operation = found.methods.get(SOCKET) if found is not None else None
            if found is None or operation is None:
                raise NoSuchPath(f"there is no WebSocket at {scope['path']}: see /docs")
            call = Call(self._door, scope)
            self._check_caller(call, page_of(call.headers))
            await operation.bind(call, found.values, scope["query_string"], b"", socket=socket)
        except PeerGone:
            return
        except RunnelError as error:
            await socket.fail(error)
        else:
            await socket.close()


def _operation(method: str, found: Found | None, path: str) -> Operation:
    """The operation that serves a method at an address; raises if none does."""
    if found is None or not (allowed := _methods(found)):
        raise NoSuchPath(f"there is nothing at {path}: see /docs for what there is")
    operation = found.methods.get("GET" if method == "HEAD" else method)
    if operation is None or method not in allowed:
        raise MethodNotAllowed(f"{path} does not take {method}, but {', '.join(allowed)}", allowed=allowed)
    return operation


def _methods(found: Found) -> list[str]:
    methods = [name for name in found.methods if name != SOCKET]
    return [*methods, "HEAD"] if "GET" in methods else methods


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is above {limit} bytes, which is the most (http-body-bytes-max)")
