"""Requests that come by the ten thousand a second: answered without task or application, mostly without a parser.

Rule 1: a hot handler and the application behind it say the same. Whatever is unusual about a request goes to the
        application: another method, a query that the handler does not understand, a large or chunked body, any body of
        a GET, HTTP/1.0, an upgrade, a header that the handler leaves to it or that the browser of a web page sends, no
        host or one by another name, a connection that is behind with taking its answers.
Rule 2: requests of a connection are answered in order. While a hot answer is due, the next request waits in line as
        behind any other, and is the application's then.
Rule 3: an answer is one write.
Rule 4: whatever a handler raises costs its request an answer of 500, and nothing else, as in `net/http.py`.
Rule 5: headers that were parsed once are not parsed again. Clients send the same ones with every request: what a block
        of bytes meant when the parser read it, it means again. A request is taken so only if it came whole and alone.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from runnel.model.errors import RunnelError, as_value
from runnel.model.limits import KIB, MIB
from runnel.net.failures import log_failure
from runnel.net.http import INTERNAL, Http, HttpListener, Peer

BODY_BYTES_MAX: Final = 16 * KIB  # times the connections there may be: what is larger is counted by the application
HEADS_BYTES_MAX: Final = 2 * MIB  # of headers that are remembered, for each route
HEAD_BYTES_MAX: Final = 2 * KIB  # of one block of them
ENTRY_BYTES: Final = 150  # what remembering one costs beside its bytes, about
_LINE_END: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_VERSION: Final = b" HTTP/1.1"
_JSON: Final = STATUS_LINE[200] + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_CLOSE: Final = b"connection: close\r\n"
_PROBLEM: Final = (b"content-type", b"application/problem+json")
_UNUSUAL: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"origin", b"sec-fetch-site"))

logger = logging.getLogger("runnel.net")


class Failed(NamedTuple):
    """What is answered instead."""

    status: int
    headers: list[tuple[bytes, bytes]]
    content: bytes


class Heads:
    """Blocks of headers, as bytes, that were found to be usual; and the size of the body that they announce."""

    __slots__ = ("_bytes", "_sizes", "size_of")

    def __init__(self) -> None:
        self._sizes: dict[bytes, int] = {}
        self._bytes = 0
        self.size_of = self._sizes.get

    def __len__(self) -> int:
        return len(self._sizes)

    def learn(self, block: bytes, size: int) -> None:
        if len(block) > HEAD_BYTES_MAX or block in self._sizes:
            return
        self._bytes += len(block) + ENTRY_BYTES
        if self._bytes > HEADS_BYTES_MAX:  # no two of these clients send the same: begin again
            self._sizes.clear()
            self._bytes = len(block) + ENTRY_BYTES
        self._sizes[block] = size


@dataclass(frozen=True, slots=True, eq=False)
class Hot:
    """What is done with a request, and what is answered."""

    method: bytes
    begin: "Callable[[bytes, Any, Exchange], None]"  # with body and query; raises RunnelError what is wrong with them
    failed: Callable[[RunnelError], Failed]
    understood: Callable[[bytes], Any] = lambda query: None if query else ()  # a query; None: it is not understood
    leaves: Collection[bytes] = ()  # requests with one of these headers are the application's
    heads: Heads = field(default_factory=Heads)


class Routes:
    """Hot requests by their paths."""

    __slots__ = ("_asked", "_plain", "at")

    def __init__(self, routes: Mapping[bytes, Hot]) -> None:
        self.at = routes.get
        self._plain = {b"%b %b%b" % (hot.method, path, _VERSION): hot for path, hot in routes.items()}
        self._asked = {b"%b %b" % (hot.method, path): hot for path, hot in routes.items()}

    def of(self, line: bytes) -> tuple[Hot | None, bytes]:
        """What the first line of a request asks for, and its query; None if it is no hot one as most are written."""
        hot = self._plain.get(line)
        if hot is not None:
            return hot, b""
        asked, _, rest = line.partition(b"?")
        if not rest.endswith(_VERSION):
            return None, b""
        return self._asked.get(asked), rest[: -len(_VERSION)]


class _Nobody:
    """Waits for no body: uvicorn tells of its end when a connection is lost."""

    def set(self) -> None: ...


class Exchange:
    """A hot request under way, and its answer, which is given once; a connection has one at a time.

    It stands where uvicorn keeps the request under way.
    """

    __slots__ = (
        "_failed", "_http", "asker", "disconnected", "keep_alive", "message_event", "more_body", "peer",
        "response_complete",
    )  # fmt: skip

    def __init__(self, http: "HotHttp", peer: Peer) -> None:
        self._http: HotHttp | None = http
        self.peer = peer
        self.asker: Any = None  # what a handler keeps of this connection from one request to the next
        self.keep_alive = True
        self.disconnected = False
        self.response_complete = True
        self.more_body = False
        self.message_event = _Nobody()

    def await_body(self) -> None:
        self.response_complete = False
        self.more_body = True

    def begin(self, failed: Callable[[RunnelError], Failed]) -> None:
        """The request is whole; what is answered when it fails."""
        self._failed = failed
        self.response_complete = False
        self.more_body = False

    def answer(self, content: bytes) -> None:
        """With 200."""
        if self._http is not None and self.keep_alive:
            self._http.answered(_JSON % (len(content), content))
        else:
            self._put_all(200, [(b"content-type", b"application/json")], content)

    def fail(self, error: RunnelError) -> None:
        self._put_all(*self._failed(as_value(error)))

    def fail_unforeseen(self, error: BaseException) -> None:
        """With 500: nobody knows what this is."""
        log_failure(logger, "a hot request failed", error)
        self._put_all(500, [_PROBLEM], INTERNAL)

    def break_off(self) -> None:
        """There is no answer."""
        if self._http is not None:
            self._http.transport.close()

    def lose(self) -> None:
        """The connection is gone: who answers talks to nobody."""
        self._http = None

    def _put_all(self, status: int, headers: list[tuple[bytes, bytes]], content: bytes) -> None:
        head = b"".join(b"%b: %b\r\n" % header for header in headers)
        size = b"content-length: %d\r\n\r\n" % len(content)
        close = b"" if self.keep_alive else _CLOSE
        if self._http is not None:
            self._http.answered(b"".join((STATUS_LINE[status], close, head, size, content)))


class HotHttp(Http):
    """One connection."""

    def __init__(
        self, listener: "HttpListener", routes: Routes, is_own_host: Callable[[bytes], bool] = lambda host: True
    ) -> None:
        super().__init__(listener)
        self._routes = routes
        self._is_own_host = is_own_host
        self._exchange = Exchange(self, self._peer)
        self._between = True  # the parser has read no part of a request
        self._read = b""  # what it reads, if that began with a request
        self._hot: Hot | None = None  # of the request that it reads
        self._body = b""
        self._query: Any = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._exchange.lose()

    # --- without the parser

    def data_received(self, data: bytes) -> None:
        self._read = b""
        if self._between and not self._is_busy():
            if self._recognised(data):
                return
            self._read = data
        super().data_received(data)

    def _is_busy(self) -> bool:
        cycle = self.cycle
        return (cycle is not None and not cycle.response_complete) or self.flow.write_paused

    def _recognised(self, data: bytes) -> bool:
        """Whether this was one hot request whose headers have come before; it is under way then (rule 5)."""
        line_end = data.find(_LINE_END)
        end = data.find(_HEAD_END, line_end)
        if end < 0 or self.transport.is_closing():
            return False
        hot, query = self._routes.of(data[:line_end])
        if hot is None or hot.heads.size_of(data[line_end:end]) != len(data) - end - len(_HEAD_END):
            return False
        understood = hot.understood(query)
        if understood is None:
            return False
        self.active_at = self.loop.time()
        self._traffic.bytes_in += len(data)
        self._ask(hot, data[end + len(_HEAD_END) :], understood)
        return True

    def _learn(self, hot: Hot) -> None:
        """The parser has read a usual request: if that is all that came, its headers need not be parsed again."""
        data = self._read
        line_end, end = data.find(_LINE_END), data.find(_HEAD_END)
        if end >= 0 and self._routes.of(data[:line_end])[0] is hot and data[end + len(_HEAD_END) :] == self._body:
            hot.heads.learn(data[line_end:end], len(self._body))

    # --- what the parser calls

    def on_message_begin(self) -> None:
        self._between = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        path, _, query = self.url.partition(b"?")
        hot = self._routes.at(path)
        if hot is not None and self._is_usual(hot) and (understood := hot.understood(query)) is not None:
            self._hot, self._body, self._query, self._in_head = hot, b"", understood, False
            self._exchange.await_body()
            self.cycle = self._exchange  # type: ignore[assignment]
        else:
            self._hot = None
            super().on_headers_complete()

    def _is_usual(self, hot: Hot) -> bool:
        if self._is_busy() or self._head_bytes or self._fed > self._limits.head_bytes_max:
            return False
        if self.parser.get_method() != hot.method or self.parser.get_http_version() != "1.1":
            return False
        size, hosts = b"" if hot.method == b"POST" else b"0", 0
        for name, value in self.headers:
            if name in _UNUSUAL or name in hot.leaves or (name == b"host" and not self._is_own_host(value)):
                return False
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                size = value
            elif name == b"connection" and value.lower() != b"keep-alive":
                return False
        return hosts == 1 and size.isdigit() and int(size) <= (BODY_BYTES_MAX if hot.method == b"POST" else 0)

    def on_body(self, body: bytes) -> None:
        if self._hot is None:
            super().on_body(body)
        else:
            self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        self._between = True
        hot = self._hot
        if hot is None:
            super().on_message_complete()
            return
        self._hot = None
        self._learn(hot)
        self._ask(hot, self._body, self._query)

    # --- the request

    def _ask(self, hot: Hot, body: bytes, query: Any) -> None:
        exchange = self._exchange
        exchange.begin(hot.failed)
        self.cycle = exchange  # type: ignore[assignment]
        try:
            hot.begin(body, query, exchange)
        except RunnelError as error:
            exchange.fail(error)
        except Exception as error:
            exchange.fail_unforeseen(error)

    def answered(self, answer: bytes) -> None:
        """The exchange's answer is due."""
        exchange, transport = self._exchange, self.transport
        if transport.is_closing():
            return
        self._traffic.bytes_out += len(answer)
        transport.write(answer)
        exchange.response_complete = True
        if exchange.keep_alive:
            self.on_response_complete()
        else:
            transport.close()


def answer_later(exchange: Exchange, task: "asyncio.Future[Any]", content: Callable[[Any], bytes]) -> None:
    """Answer out of what a task returns or raises."""
    task.add_done_callback(lambda done: _answer(exchange, done, content))


def _answer(exchange: Exchange, task: "asyncio.Future[Any]", content: Callable[[Any], bytes]) -> None:
    if task.cancelled():
        exchange.break_off()
        return
    error = task.exception()
    if error is None:
        exchange.answer(content(task.result()))
    elif isinstance(error, RunnelError):
        exchange.fail(error)
    else:
        exchange.fail_unforeseen(error)
