"""Requests that come by the ten thousand a second: answered out of the parser's callback, without task or application.

Rule 1: a hot handler and the application behind it say the same. Whatever is unusual about a request goes to the
        application: another method, a query that the handler does not understand, a large or chunked body, HTTP/1.0, an
        upgrade, a header that the handler leaves to it, a connection that is behind with taking its answers.
Rule 2: requests of a connection are answered in order. While a hot answer is due, the next request waits in line as
        behind any other, and is the application's then.
Rule 3: an answer is one write.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from runnel.model.errors import RunnelError
from runnel.model.limits import KIB
from runnel.net.http import Http, HttpListener, Peer

BODY_BYTES_MAX: Final = 16 * KIB  # times the connections there may be: what is larger is counted by the application
_JSON: Final = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
_CLOSE: Final = b"connection: close\r\n"
_OK: Final = STATUS_LINE[200]
_UNUSUAL: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"origin"))


class Failed(NamedTuple):
    """What is answered instead."""

    status: int
    headers: list[tuple[bytes, bytes]]
    content: bytes


Content: TypeAlias = Callable[[Any], bytes]  # of an answer, out of a future's result


class Asked(NamedTuple):
    """A request."""

    body: bytes
    query: Any  # as it was understood
    peer: Peer


class Hot(NamedTuple):
    """What is done with a request, and what is answered."""

    method: bytes
    begin: "Callable[[Asked], tuple[asyncio.Future[Any], Content]]"  # raises RunnelError what is wrong with it
    failed: Callable[[RunnelError], Failed]
    understood: Callable[[bytes], Any] = lambda query: None if query else ()  # a query; None: it is not understood
    leaves: Collection[bytes] = ()  # requests with one of these headers are the application's


class _Due:
    """Stands where uvicorn keeps the request under way, while a hot one is."""

    __slots__ = ("disconnected", "keep_alive", "message_event", "more_body", "response_complete")

    def __init__(self) -> None:
        self.response_complete = False
        self.more_body = True
        self.disconnected = False
        self.keep_alive = True
        self.message_event = asyncio.Event()


class HotHttp(Http):
    """One connection."""

    def __init__(self, listener: "HttpListener", routes: Mapping[bytes, Hot]) -> None:
        super().__init__(listener)
        self._routes = routes
        self._hot: Hot | None = None
        self._due: _Due | None = None
        self._body = b""
        self._query: Any = None

    def on_headers_complete(self) -> None:
        path, _, query = self.url.partition(b"?")
        hot = self._routes.get(path)
        if hot is not None and self._is_usual(hot) and (understood := hot.understood(query)) is not None:
            self._hot, self._body, self._query, self._in_head = hot, b"", understood, False
            self._due = due = _Due()
            self.cycle = cast(Any, due)
        else:
            self._hot = None
            super().on_headers_complete()

    def _is_usual(self, hot: Hot) -> bool:
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        if self._head_bytes or self._fed > self._limits.head_bytes_max:
            return False
        if self.flow.write_paused or self.parser.get_method() != hot.method or self.parser.get_http_version() != "1.1":
            return False
        size = b"" if hot.method == b"POST" else b"0"
        for name, value in self.headers:
            if name in _UNUSUAL or name in hot.leaves:
                return False
            if name == b"content-length":
                size = value
            elif name == b"connection" and value.lower() != b"keep-alive":
                return False
        return size.isdigit() and int(size) <= BODY_BYTES_MAX

    def on_body(self, body: bytes) -> None:
        if self._hot is None:
            super().on_body(body)
        else:
            self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        hot, due = self._hot, self._due
        if hot is None or due is None:
            super().on_message_complete()
            return
        self._hot = None
        due.more_body = False
        try:
            future, content = hot.begin(Asked(self._body, self._query, self._peer))
        except RunnelError as error:
            self._answer_failure(due, hot.failed(error))
            return
        future.add_done_callback(lambda done: self._answered(due, hot, content, done))

    def _answered(self, due: _Due, hot: Hot, content_of: Content, future: "asyncio.Future[Any]") -> None:
        if due.disconnected or future.cancelled():
            self.transport.close()
            return
        error = future.exception()
        if error is None:
            content = content_of(future.result())
            self._answer(due, (_OK, _JSON % len(content), content))
        elif isinstance(error, RunnelError):
            self._answer_failure(due, hot.failed(error))
        else:
            self.transport.close()
            raise error

    def _answer_failure(self, due: _Due, failed: Failed) -> None:
        head = b"".join(b"%b: %b\r\n" % header for header in failed.headers)
        size = b"content-length: %d\r\n\r\n" % len(failed.content)
        self._answer(due, (STATUS_LINE[failed.status], head, size, failed.content))

    def _answer(self, due: _Due, parts: tuple[bytes, ...]) -> None:
        if not due.keep_alive:
            parts = (parts[0], _CLOSE, *parts[1:])
        answer = b"".join(parts)
        self._traffic.bytes_out += len(answer)
        self.transport.write(answer)
        due.response_complete = True
        if due.keep_alive:
            self.on_response_complete()
        else:
            self.transport.close()
