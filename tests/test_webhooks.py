"""Webhooks: brokers POST messages to a subscriber, signed, no faster than it takes them, until it does."""

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.conftest import cluster_broker
from tests.test_inbox import CLOCKS_APART_S, User, until

from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper

ALLOWED = {"RUNNEL_WEBHOOK_PRIVATE": "true"}


class Post(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes
    at: float


class Subscriber:
    """A server of one's own; `answer` says what it answers to a POST: a status, and headers."""

    def __init__(self, answer: Callable[[Post], tuple[int, dict[str, str]]]) -> None:
        self.posts: list[Post] = []
        self.at_once = 0
        self.at_once_max = 0
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                post = Post(self.path, {name.lower(): v for name, v in self.headers.items()}, body, time.monotonic())
                with lock:
                    outer.posts.append(post)
                    outer.at_once += 1
                    outer.at_once_max = max(outer.at_once_max, outer.at_once)
                status, headers = answer(post)
                with lock:
                    outer.at_once -= 1
                self.send_response(status)
                for name, value in {"Content-Length": "0", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?a=1"

    def __enter__(self) -> "Subscriber":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def bodies(self) -> list[str]:
        return [post.body.decode() for post in self.posts]


def ok(post: Post) -> tuple[int, dict[str, str]]:
    return 200, {}


@pytest.fixture(scope="module")
def hooking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("hooking") / "data", environment=ALLOWED) as broker:
        yield broker


@contextmanager
def hooked(broker: BrokerProcess, name: str, subscriber: Subscriber, **more: Any) -> Iterator[User]:
    with User(broker) as user:
        body = {"name": name, "topic": f"{name}-t", "url": subscriber.url, "secret": "very secret", **more}
        status, answer = user.ask("POST", "/v1/webhooks", body)
        assert status == 201, answer
        yield user
        assert user.ask("DELETE", f"/v1/webhooks/{name}")[0] == 204


def send(user: User, name: str, *texts: str, **more: Any) -> None:
    status, answer = user.ask("POST", f"/v1/topics/{name}-t/messages", [{"text": text, **more} for text in texts])
    assert status == 200, answer


def test_messages_are_posted_and_signed(hooking: BrokerProcess) -> None:
    with Subscriber(ok) as subscriber, hooked(hooking, "hook-1", subscriber) as user:
        send(user, "hook-1", "hello", key="k", headers={"trace": "7", "content-type": "text/plain"})
        until(lambda: bool(subscriber.posts))
        [post] = subscriber.posts
        assert (post.path, post.body) == ("/hook?a=1", b"hello")
        signed = post.headers["runnel-timestamp"].encode() + b"." + post.body
        assert post.headers["runnel-signature"] == "v1=" + hmac.new(b"very secret", signed, hashlib.sha256).hexdigest()
        assert post.headers["runnel-message"] == "hook-1-t/0/0"
        assert post.headers["runnel-attempt"] == "1"
        assert (post.headers["runnel-key"], post.headers["runnel-header-trace"]) == ("k", "7")
        assert post.headers["content-type"] == "text/plain"
        until(lambda: settled(user, "hook-1") == 1)


def settled(user: User, name: str) -> int:
    status, answer = user.ask("GET", f"/v1/queues/{name}")
    assert status == 200, answer
    return sum(one["accepted"] for one in answer["partitions"])


def test_what_is_refused_is_posted_again_until_it_is_dead(hooking: BrokerProcess) -> None:
    def answer(post: Post) -> tuple[int, dict[str, str]]:
        if post.body == b"bad":
            return 503, {"Retry-After": "Mon, 01 Jan 99999999999999999999 00:00:00 +0000"}  # says nothing
        return (302 if post.body == b"moved" else 204), {"Location": "/elsewhere"}

    settings = {"retry.backoff.ms": 10, "attempts.max": 3}
    with Subscriber(answer) as subscriber, hooked(hooking, "hook-2", subscriber, settings=settings) as user:
        send(user, "hook-2", "bad", "moved", "good")
        until(lambda: len(subscriber.posts) >= 7)
        until(lambda: len(user.ask("GET", "/v1/queues/hook-2/dead-letters")[1]["letters"]) == 2)
        letters = user.ask("GET", "/v1/queues/hook-2/dead-letters")[1]["letters"]
        reasons = {each["message"]["text"]: each["reason"] for each in letters}
        assert reasons == {"bad": "attempts: answered with 503", "moved": "attempts: answered with 302"}
        bodies = subscriber.bodies()
        assert (bodies.count("bad"), bodies.count("moved"), bodies.count("good")) == (3, 3, 1)
        assert {post.path for post in subscriber.posts} == {"/hook?a=1"}  # a redirect is not followed
        assert [post.headers["runnel-attempt"] for post in subscriber.posts if post.body == b"bad"] == ["1", "2", "3"]


def test_who_asks_for_patience_is_left_alone_and_loses_no_attempt(hooking: BrokerProcess) -> None:
    calm = threading.Event()

    def answer(post: Post) -> tuple[int, dict[str, str]]:
        if calm.is_set():
            return 200, {}
        calm.set()
        return 429, {"Retry-After": "1"}

    settings = {"webhook.concurrency": 1}
    with Subscriber(answer) as subscriber, hooked(hooking, "hook-3", subscriber, settings=settings) as user:
        send(user, "hook-3", "a", "b")
        until(lambda: len(subscriber.posts) == 3)
        first, again, other = subscriber.posts
        assert (first.body, again.body, other.body) == (b"a", b"a", b"b")
        assert again.at - first.at >= 1.0 - CLOCKS_APART_S
        assert again.headers["runnel-attempt"] == "1"


def test_a_slow_subscriber_gets_no_more_at_a_time_than_it_can_take(hooking: BrokerProcess) -> None:
    def answer(post: Post) -> tuple[int, dict[str, str]]:
        time.sleep(0.05)
        return 200, {}

    settings = {"webhook.concurrency": 3}
    with Subscriber(answer) as subscriber, hooked(hooking, "hook-4", subscriber, settings=settings) as user:
        send(user, "hook-4", *[f"m{n}" for n in range(30)])
        until(lambda: len(subscriber.posts) == 30)
        assert subscriber.at_once_max <= 3
        assert sorted(subscriber.bodies()) == sorted(f"m{n}" for n in range(30))


def test_silence_is_waited_for_no_longer_than_allowed(hooking: BrokerProcess) -> None:
    over = threading.Event()

    def answer(post: Post) -> tuple[int, dict[str, str]]:
        if post.headers["runnel-attempt"] == "1":
            over.wait(30)
        return 200, {}

    settings = {"webhook.timeout.ms": 200, "retry.backoff.ms": 10}
    with Subscriber(answer) as subscriber, hooked(hooking, "hook-5", subscriber, settings=settings) as user:
        send(user, "hook-5", "x")
        until(lambda: settled(user, "hook-5") == 1)
        over.set()
        assert [post.headers["runnel-attempt"] for post in subscriber.posts] == ["1", "2"]


def test_a_filter_and_settings_of_the_queue_hold(hooking: BrokerProcess) -> None:
    with Subscriber(ok) as subscriber, hooked(hooking, "hook-6", subscriber, filter="key = 'x'") as user:
        send(user, "hook-6", "no", key="y")
        send(user, "hook-6", "yes", key="x")
        until(lambda: bool(subscriber.posts))
        assert subscriber.bodies() == ["yes"]
        shown = json.dumps([user.ask("GET", f"/v1/{path}")[1] for path in ("queues", "queues/hook-6", "webhooks")])
        assert subscriber.url in shown
        assert "very secret" not in shown


@pytest.mark.parametrize(
    "url", ["ftp://example.com/", "http://", "http://user:pw@example.com/", "http://a b/", "file:///x"]
)
def test_what_is_no_address_of_a_server_is_refused(hooking: BrokerProcess, url: str) -> None:
    with User(hooking) as user:
        status, problem = user.ask("POST", "/v1/webhooks", {"name": "hook-bad", "topic": "t", "url": url})
        assert status == 422, problem
        assert user.ask("DELETE", "/v1/webhooks/hook-bad")[0] == 404


def test_private_addresses_are_left_alone_unless_they_are_allowed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, Subscriber(ok) as subscriber, User(broker) as user:
        body = {"name": "h", "topic": "t", "url": subscriber.url}
        assert user.ask("POST", "/v1/webhooks", body)[0] == 422
        settings = {"topic": "t", "attempts.max": 1, "webhook.url": subscriber.url}  # as if by a name that is looked up
        assert user.ask("POST", "/v1/queues", {"name": "h", "settings": settings})[0] == 201
        assert user.ask("POST", "/v1/topics/t/messages", {"text": "x"})[0] == 200
        until(lambda: len(user.ask("GET", "/v1/queues/h/dead-letters")[1]["letters"]) == 1)
        assert not subscriber.posts


def test_webhooks_are_listed_page_by_page_and_other_queues_are_none(hooking: BrokerProcess) -> None:
    with Subscriber(ok) as subscriber, hooked(hooking, "list-1", subscriber) as user:
        assert user.ask("POST", "/v1/queues", {"name": "list-2"})[0] == 201
        with hooked(hooking, "list-3", subscriber):
            views = [{"name": name, "topic": f"{name}-t", "url": subscriber.url} for name in ("list-1", "list-3")]
            assert user.ask("GET", "/v1/webhooks?after=list-0")[1] == {"webhooks": views, "more": False}
            assert user.ask("GET", "/v1/webhooks?after=list-0&limit=1")[1] == {"webhooks": views[:1], "more": True}
            assert user.ask("GET", "/v1/webhooks?after=list-1&limit=1")[1] == {"webhooks": views[1:], "more": False}


def test_messages_are_posted_after_a_crash(tmp_path: Path) -> None:
    with Subscriber(ok) as subscriber, BrokerProcess(tmp_path / "data", environment=ALLOWED) as broker:
        with User(broker) as user:
            body = {"name": "h", "topic": "t", "url": subscriber.url}
            assert user.ask("POST", "/v1/webhooks", body)[0] == 201
            assert user.ask("POST", "/v1/topics/t/messages", [{"text": f"a{n}"} for n in range(50)])[0] == 200
        broker.kill()
        broker.start()
        with User(broker) as user:
            assert user.ask("POST", "/v1/topics/t/messages", {"text": "last"})[0] == 200
            wanted = {*(f"a{n}" for n in range(50)), "last"}
            until(lambda: wanted <= set(subscriber.bodies()))
            until(lambda: sum(one["leased"] for one in user.ask("GET", "/v1/queues/h")[1]["partitions"]) == 0)
        before = len(subscriber.posts)
        broker.kill()
        broker.start()
        with User(broker) as user:  # what is leased, is leased in order: a message behind all others comes last
            assert user.ask("POST", "/v1/topics/t/messages", {"text": "behind"})[0] == 200
            until(lambda: "behind" in subscriber.bodies())
            until(lambda: sum(one["leased"] for one in user.ask("GET", "/v1/queues/h")[1]["partitions"]) == 0)
        assert len(subscriber.posts) == before + 1  # what was taken is not posted again


def test_another_broker_posts_when_the_leader_falls(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with Subscriber(ok) as subscriber, ExitStack() as stack:
        brokers = [cluster_broker(zookeeper, tmp_path, number) for number in (1, 2, 3)]
        for broker in brokers:
            broker._environment.update(ALLOWED)
            stack.enter_context(broker)
        with User(brokers[0]) as user:
            status, answer = user.ask("POST", "/v1/webhooks", {"name": "h", "topic": "t", "url": subscriber.url})
            assert status == 201, answer
            assert user.ask("POST", "/v1/topics/t/messages", {"text": "before"})[0] == 200
            until(lambda: "before" in subscriber.bodies())
            leader = user.ask("GET", "/v1/topics/t")[1]["partitions"][0]["leader"]
        brokers[leader - 1].kill()
        with User(brokers[leader % 3]) as user:
            until(lambda: user.ask("POST", "/v1/topics/t/messages", {"text": "after"})[0] == 200)
            until(lambda: "after" in subscriber.bodies())
