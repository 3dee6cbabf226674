"""The page of the fleet: one file, and the results as Server-Sent Events from the broker's own HTTP door.

Rule 1: the page has the address that its events come from: the broker lets no page of another address read. What is
        passed on is the events of the three result topics, and nothing else of the broker.
Rule 2: nothing is kept here. A browser that comes back says where it was, and the broker goes on there.
Rule 3: only requests that name this very machine are answered, so that no other page can be led here by a name.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from threading import BoundedSemaphore, Thread
from typing import ClassVar
from urllib.parse import parse_qs, quote, urlsplit

from runnel.pipelines.jobs.fleet.topics import Topics

CONNECTIONS_MAX = 60  # each has a thread; a page has three
SILENCE_S = 60.0  # the broker says something every 15 s
PART_BYTES = 64 * 1024
NAMES = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class PageConf:
    http: str = "127.0.0.1:8080"  # the broker's HTTP door
    host: str = "127.0.0.1"
    port: int = 8000
    topics: Topics = Topics()


class Handler(BaseHTTPRequestHandler):
    """One connection of a browser."""

    protocol_version = "HTTP/1.1"
    conf: ClassVar[PageConf]
    room: ClassVar[BoundedSemaphore]

    def do_GET(self) -> None:
        target = urlsplit(self.path)
        name = (self.headers.get("Host") or "").rpartition(":")[0]
        if name not in (*NAMES, self.conf.host):
            self._answer(403, b"This page is for its own machine.", "text/plain")
        elif target.path == "/":
            self._answer(200, page(), "text/html; charset=utf-8")
        elif (topic := self._topic(target.path)) is not None:
            self._pass_on(topic, parse_qs(target.query).get("begin", ["end"])[0])
        else:
            self._answer(404, b"There is only one page here: /", "text/plain")

    def _topic(self, path: str) -> str | None:
        topics = self.conf.topics
        return {"/live/cars": topics.cars, "/live/heat": topics.heat, "/live/alerts": topics.alerts}.get(path)

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; "
                         "style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'")  # fmt: skip
        self.end_headers()
        self.wfile.write(body)

    def _pass_on(self, topic: str, begin: str) -> None:
        """The events of a topic, as long as both ends want."""
        self.close_connection = True
        if not self.room.acquire(blocking=False):
            self._answer(503, b"Too many pages are open.", "text/plain")
            return
        try:
            self._events(topic, begin)
        finally:
            self.room.release()

    def _events(self, topic: str, begin: str) -> None:
        try:
            with _events_of(self.conf.http, topic, self.headers.get("Last-Event-ID") or begin) as answer:
                if answer.status != 200:
                    self._answer(502, answer.read(PART_BYTES), "application/problem+json")
                    return
                self._stream(answer)
        except (OSError, HTTPException) as error:
            if not self.wfile.closed and not getattr(self, "_begun", False):
                self._answer(502, f"The broker at {self.conf.http} does not answer: {error}".encode(), "text/plain")

    def _stream(self, answer: HTTPResponse) -> None:
        self._begun = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        while part := answer.read1(PART_BYTES):
            self.wfile.write(part)

    def log_message(self, format: str, *args: object) -> None:
        """A page that is looked at is nothing to report."""


@contextmanager
def _events_of(http: str, topic: str, begin: str) -> Iterator[HTTPResponse]:
    upstream = HTTPConnection(http, timeout=SILENCE_S)
    try:
        upstream.request("GET", f"/v1/topics/{quote(topic)}/events?begin={quote(begin)}")
        yield upstream.getresponse()
    finally:
        upstream.close()


def page() -> bytes:
    return files("runnel.pipelines.jobs.fleet").joinpath("page.html").read_bytes()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went away in the middle of an answer is nothing to report."""


@contextmanager
def serving(conf: PageConf) -> Iterator[str]:
    """Serve the page for the time of the block; its address."""
    handler = type("FleetHandler", (Handler,), {"conf": conf, "room": BoundedSemaphore(CONNECTIONS_MAX)})
    server = Server((conf.host, conf.port), handler)
    Thread(target=server.serve_forever, name="fleet-page", daemon=True).start()
    try:
        yield f"http://{conf.host}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
