"""Push: what is sent arrives on streams, no faster than granted, and whoever comes back goes on where it stopped."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from tests.test_inbox import User
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from runnel.testing.process import BrokerProcess

LIMIT_S = 30.0


class Events:
    """A stream of events, read one by one."""

    def __init__(self, broker: BrokerProcess, path: str, last_id: str = "") -> None:
        self._connection = HTTPConnection(broker.http, timeout=LIMIT_S)
        headers = {"Runnel-Client": "test", **({"Last-Event-ID": last_id} if last_id else {})}
        self._connection.request("GET", path, headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        assert self._answer.headers["content-type"] == "text/event-stream"

    def event(self) -> dict[str, str]:
        """The next one, with its fields; comments are passed over."""
        fields: dict[str, str] = {}
        while True:
            line = self._answer.readline().decode().rstrip("\n")
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                return fields

    def data(self) -> Any:
        return json.loads(self.event()["data"])

    def rest(self) -> bytes:
        """What came until the stream ended; raises if it was cut off."""
        return self._answer.read()

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


@contextmanager
def events(broker: BrokerProcess, path: str, last_id: str = "", **query: Any) -> Iterator[Events]:
    stream = Events(broker, f"{path}?{urlencode(query, doseq=True)}", last_id)
    try:
        assert stream.event()["event"] == "open"
        yield stream
    finally:
        stream.close()


@contextmanager
def line(broker: BrokerProcess, path: str, **query: Any) -> Iterator[ClientConnection]:
    with connect(f"ws://{broker.http}{path}?{urlencode(query, doseq=True)}", open_timeout=LIMIT_S) as socket:
        assert heard(socket)["type"] == "open"
        yield socket


def heard(socket: ClientConnection) -> Any:
    return json.loads(socket.recv(LIMIT_S))


def say(socket: ClientConnection, **content: Any) -> None:
    socket.send(json.dumps(content))


def silent(socket: ClientConnection) -> bool:
    try:
        socket.recv(0.3)
    except TimeoutError:
        return True
    return False


@pytest.fixture
def user(broker: BrokerProcess) -> Iterator[User]:
    with User(broker) as someone:
        yield someone


def topic_of(user: User, name: str, partitions: int = 1) -> str:
    status, answer = user.ask("POST", "/v1/topics", {"name": name, "partitions": partitions})
    assert status == 201, answer
    return f"/v1/topics/{name}"


def send(user: User, topic: str, *texts: str, **more: Any) -> None:
    status, answer = user.ask("POST", f"{topic}/messages", [{"text": text, **more} for text in texts])
    assert status == 200, answer


def queue_of(user: User, name: str, **settings: Any) -> str:
    status, answer = user.ask("POST", "/v1/queues", {"name": name, "settings": settings})
    assert status == 201, answer
    return f"/v1/queues/{name}"


# --- events
def test_a_topic_is_followed_from_its_end(broker: BrokerProcess, user: User) -> None:
    topic = topic_of(user, "push-1")
    send(user, topic, "old")
    with events(broker, f"{topic}/events") as stream:
        send(user, topic, "a", "b")
        assert [stream.data()["text"] for _ in range(2)] == ["a", "b"]


def test_whoever_comes_back_goes_on_behind_the_last_event(broker: BrokerProcess, user: User) -> None:
    topic = topic_of(user, "push-2", 3)
    wanted = {f"m{n}" for n in range(40)}
    for n in range(40):
        send(user, topic, f"m{n}", key=f"k{n}")
    got: list[str] = []
    last_id = ""
    while len(got) < 40:
        with events(broker, f"{topic}/events", last_id, begin="start") as stream:
            for _ in range(7 if len(got) < 35 else 5):
                event = stream.event()
                got.append(json.loads(event["data"])["text"])
                last_id = event["id"]
    assert sorted(got) == sorted(wanted)
    send(user, topic, "last", key="k")
    with events(broker, f"{topic}/events", begin=last_id) as stream:
        assert stream.data()["text"] == "last"


def test_a_filter_is_asked_before_anything_is_sent(broker: BrokerProcess, user: User) -> None:
    topic = topic_of(user, "push-3")
    with events(broker, f"{topic}/events", filter="key = 'x'") as stream:
        send(user, topic, "no", key="y")
        send(user, topic, "yes", key="x")
        assert stream.data()["text"] == "yes"
    status, problem = user.ask("GET", f"{topic}/events?filter={quote('key = = 1')}")
    assert (status, problem["code"]) == (422, "invalid-filter")
    assert user.ask("GET", "/v1/topics/push-nowhere/events")[0] == 404
    assert user.ask("GET", f"{topic}/events?begin=nonsense")[0] == 422


def test_whoever_heard_of_no_message_yet_goes_on_from_where_it_began(broker: BrokerProcess, user: User) -> None:
    topic = topic_of(user, "push-14", 2)
    send(user, topic, "old")
    stream = Events(broker, f"{topic}/events")
    opened = stream.event()
    stream.close()
    send(user, topic, "meanwhile")
    with events(broker, f"{topic}/events", opened["id"]) as again:
        assert again.data()["text"] == "meanwhile"


def test_partitions_that_are_added_are_followed_from_their_start(broker: BrokerProcess, user: User) -> None:
    topic = topic_of(user, "push-15")
    with events(broker, f"{topic}/events") as all_of_it, events(broker, f"{topic}/events", partition=0) as one:
        assert user.ask("POST", f"{topic}/partitions", {"count": 2})[0] < 300
        send(user, topic, "new", partition=1)
        event = all_of_it.event()
        assert json.loads(event["data"])["text"] == "new"
        send(user, topic, "first", partition=0)
        assert all_of_it.data()["text"] == one.data()["text"] == "first"
    with events(broker, f"{topic}/events", event["id"]) as stream:
        assert stream.data()["text"] == "first"


def test_a_stream_of_a_topic_that_is_deleted_says_so_and_ends(broker: BrokerProcess, user: User) -> None:
    topic = topic_of(user, "push-16", 2)
    with events(broker, f"{topic}/events") as stream, events(broker, f"{topic}/events", partition=1) as part:
        assert user.ask("DELETE", topic)[0] < 300
        topic_of(user, "push-16", 2)
        for each in (stream, part):
            last = each.event()
            assert (last["event"], json.loads(last["data"])["code"]) == ("error", "topic-gone")
            assert each.rest() == b""


def test_no_value_makes_a_stream_fall_silent(broker: BrokerProcess, user: User) -> None:
    topic, deep = topic_of(user, "push-17"), "[" * 5_000
    send(user, topic, "one", deep, "three")
    group = "/v1/groups/push-17-g/events"
    for path, query in ((f"{topic}/events", {"begin": "start"}), (group, {"topic": "push-17"})):
        with events(broker, path, **query) as stream:
            assert [stream.data()["text"] for _ in range(3)] == ["one", deep, "three"]


def test_a_user_gets_messages_without_asking(broker: BrokerProcess, user: User) -> None:
    first = user.send("push-bob", "one")
    with events(broker, "/v1/users/push-bob/events") as stream:
        assert stream.event()["id"] == first
        second = user.send("push-bob", "two")
        event = stream.event()
        assert (event["id"], json.loads(event["data"])["message"]) == (second, "two")
    with events(broker, "/v1/users/push-bob/events", first) as stream:
        assert stream.event()["id"] == second


def test_a_slow_client_is_behind_and_gets_everything(broker: BrokerProcess, user: User) -> None:
    topic = topic_of(user, "push-4")
    with events(broker, f"{topic}/events", begin="start") as stream:
        for part in range(20):
            send(user, topic, *[f"{part}-{n} " + "x" * 20_000 for n in range(20)])  # 8 MB that nobody takes
        got = [stream.data()["text"].split()[0] for _ in range(400)]
    assert got == [f"{part}-{n}" for part in range(20) for n in range(20)]


def test_a_group_is_followed_and_commits(broker: BrokerProcess, user: User) -> None:
    topic = topic_of(user, "push-5")
    send(user, topic, "a", "b", "c")
    stream = Events(broker, "/v1/groups/push-5-g/events?topic=push-5")
    member = stream.data()["member"]
    assert [stream.data()["text"] for _ in range(3)] == ["a", "b", "c"]
    offsets = [{"topic": "push-5", "partition": 0, "offset": 2}]
    status, answer = user.ask("POST", f"/v1/groups/push-5-g/members/{member}/commit", {"offsets": offsets})
    assert status in (200, 204), answer
    stream.close()
    with line(broker, "/v1/groups/push-5-g/socket", topic="push-5") as socket:
        assert heard(socket)["message"]["text"] == "c"


def test_of_a_queue_no_more_is_out_than_granted(broker: BrokerProcess, user: User) -> None:
    queue = queue_of(user, "push-6")
    status, answer = user.ask("POST", f"{queue}/messages", [{"text": f"m{n}"} for n in range(5)])
    assert status == 200, answer
    with events(broker, f"{queue}/events", credit=2) as stream:
        out = [stream.data() for _ in range(2)]
        time.sleep(0.5)
        described = user.ask("GET", queue)[1]
        assert sum(one["leased"] for one in described["partitions"]) == 2
        assert user.ask("POST", f"{queue}/ack", {"receipts": [out[0]["receipt"]]})[0] == 200
        third = stream.data()
        assert {one["text"] for one in (*out, third)} == {"m0", "m1", "m2"}


def test_every_stream_ends_in_order_when_the_broker_stops(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with User(broker) as user:
            topic = topic_of(user, "push-stop")
            queue = queue_of(user, "push-stop-q")
        paths = (f"{topic}/events", "/v1/users/x/events", "/v1/groups/g/events?topic=push-stop", f"{queue}/events")
        streams = [Events(broker, path) for path in paths]
        for stream in streams:
            assert stream.event()["event"] == "open"
        assert broker.stop() == 0
        for path, stream in zip(paths, streams, strict=True):
            assert stream.rest().strip(b":\n") == b"", path
            stream.close()


# --- sockets
def test_a_socket_sends_no_more_than_granted(broker: BrokerProcess, user: User) -> None:
    topic = topic_of(user, "push-7")
    send(user, topic, *[f"m{n}" for n in range(10)])
    with line(broker, f"{topic}/socket", begin="start", credit=3) as socket:
        first = [heard(socket) for _ in range(3)]
        assert [one["message"]["text"] for one in first] == ["m0", "m1", "m2"]
        assert silent(socket)
        say(socket, credit=2)
        assert [heard(socket)["message"]["text"] for _ in range(2)] == ["m3", "m4"]
        assert silent(socket)
    with line(broker, f"{topic}/socket", begin=first[1]["id"], credit=1) as socket:
        assert heard(socket)["message"]["text"] == "m2"


def test_a_member_commits_on_its_socket(broker: BrokerProcess, user: User) -> None:
    topic = topic_of(user, "push-8")
    send(user, topic, "a", "b", "c")
    with line(broker, "/v1/groups/push-8-g/socket", topic="push-8", credit=2) as socket:
        assert [heard(socket)["message"]["text"] for _ in range(2)] == ["a", "b"]
        say(socket, commit=[["push-8", 0, 2]])
        assert heard(socket)["type"] == "committed"
    with line(broker, "/v1/groups/push-8-g/socket", topic="push-8") as socket:
        assert heard(socket)["message"]["text"] == "c"


def committed_of(user: User, group: str) -> int | None:
    [lag] = user.ask("GET", f"/v1/groups/{group}")[1]["partitions"]
    offset: int | None = lag["committed"]
    return offset


def test_a_member_commits_what_it_has_seen_by_its_ids(broker: BrokerProcess, user: User) -> None:
    topic = topic_of(user, "push-12")
    send(user, topic, *[f"m{n}" for n in range(50)])
    with line(broker, "/v1/groups/push-12-g/socket", topic="push-12") as socket:
        ids = [heard(socket)["id"] for _ in range(50)]
        said: list[tuple[Any, int | None]] = [
            ([], None), (ids[0], 1), ([ids[4], ids[2]], 5), ([["push-12", 0, 7], ids[5]], 7), (True, 50),
        ]  # fmt: skip
        for commit, offset in said:
            say(socket, commit=commit)
            assert heard(socket)["type"] == "committed"
            assert committed_of(user, "push-12-g") == offset


@pytest.mark.parametrize("commit", [[["push-13", 0, -1]], [["push-13", 0, 10**23]], "nonsense", ["push-13/0"]])
def test_a_commit_that_can_not_be_meant_ends_the_socket(broker: BrokerProcess, user: User, commit: Any) -> None:
    user.ask("POST", "/v1/topics", {"name": "push-13"})
    with line(broker, "/v1/groups/push-13-g/socket", topic="push-13") as socket:
        say(socket, commit=commit)
        with pytest.raises(ConnectionClosed):
            heard(socket)


def test_messages_of_a_queue_are_settled_on_the_socket(broker: BrokerProcess, user: User) -> None:
    queue = queue_of(user, "push-9", **{"retry.backoff.ms": 0})
    user.ask("POST", f"{queue}/messages", [{"text": f"m{n}"} for n in range(4)])
    with line(broker, f"{queue}/socket", credit=2) as socket:
        one, two = heard(socket)["message"], heard(socket)["message"]
        assert silent(socket)
        say(socket, ack=[one["receipt"]])
        answers = [heard(socket), heard(socket)]
        [settled] = [answer for answer in answers if answer["type"] == "settled"]
        assert (settled["settled"], settled["refused"]) == (1, [])
        say(socket, ack=[one["receipt"] + "x"])
        refused = next(answer for answer in iter(lambda: heard(socket), None) if answer["type"] == "settled")
        assert len(refused["refused"]) == 1
        say(socket, nack=[two["receipt"]], delay_ms=0)
        again = heard(socket)
        while again["type"] != "message" or again["message"]["attempt"] != 2:
            again = heard(socket)
        assert again["message"]["text"] == two["text"]


def test_what_a_socket_leaves_unsettled_is_delivered_again(broker: BrokerProcess, user: User) -> None:
    queue = queue_of(user, "push-10", **{"retry.backoff.ms": 0})
    user.ask("POST", f"{queue}/messages", {"text": "mine"})
    with line(broker, f"{queue}/socket") as socket:
        assert heard(socket)["message"]["attempt"] == 1
    with line(broker, f"{queue}/socket") as socket:
        message = heard(socket)["message"]
        assert (message["text"], message["attempt"]) == ("mine", 2)


def test_each_stream_is_a_consumer_of_its_own_and_leaves_its_place_to_the_next(
    broker: BrokerProcess, user: User
) -> None:
    queue = queue_of(user, "push-single", **{"consumers": "single", "lease.ms": 600_000})
    user.ask("POST", f"{queue}/messages", [{"text": f"m{n}"} for n in range(3)])
    with line(broker, f"{queue}/socket", credit=1) as first, line(broker, f"{queue}/socket", credit=1) as second:
        had = heard(first)["message"]
        assert silent(second)
        say(first, ack=[had["receipt"]])
        assert {heard(first)["type"], heard(first)["type"]} == {"settled", "message"}
        first.close()
        assert heard(second)["message"]["text"] == "m1"


def test_what_can_not_be_had_is_refused_at_the_handshake(broker: BrokerProcess, user: User) -> None:
    group = "/v1/groups/push-none/{}?topic=push-none"
    for path in ("/v1/topics/push-none/socket", "/v1/queues/push-none/socket", group.format("socket"), "/v1/none"):
        with pytest.raises(InvalidStatus) as refused, connect(f"ws://{broker.http}{path}"):
            pass
        assert refused.value.response.status_code == 404
    refusal = user.ask("GET", group.format("events"), headers={"Runnel-Client": "test"})[1]
    assert refusal["code"] == "unknown-topic"


@pytest.mark.parametrize("id", ["0", "1700000000000", "start", "2026-01-31T08:00:00Z", "0-1-2", "x", "-1-1"])
def test_a_last_event_id_that_is_none_is_refused(broker: BrokerProcess, user: User, id: str) -> None:
    """Digits were taken for a time: the stream began anywhere."""
    if user.ask("GET", "/v1/topics/push-resumed")[0] == 404:
        topic_of(user, "push-resumed")
    status, problem = user.ask("GET", "/v1/topics/push-resumed/events", headers={"Last-Event-ID": id})
    assert (status, problem["code"]) == (422, "invalid-input")
    assert "Last-Event-ID" in problem["detail"]


def test_nonsense_ends_a_socket_with_a_reason(broker: BrokerProcess, user: User) -> None:
    topic = topic_of(user, "push-11")
    with line(broker, f"{topic}/socket") as socket:
        socket.send("nonsense")
        with pytest.raises(Exception, match="JSON"):
            socket.recv(LIMIT_S)


# --- live
@contextmanager
def page(broker: BrokerProcess) -> Iterator[ClientConnection]:
    with connect(f"ws://{broker.http}/v1/live", open_timeout=LIMIT_S, max_queue=1, compression=None) as socket:
        yield socket


def test_a_page_hears_of_what_it_subscribed_to(broker: BrokerProcess, user: User) -> None:
    with page(broker) as socket:
        say(socket, subscribe={"id": "o", "kind": "overview"})
        overview = heard(socket)
        assert (overview["id"], len(overview["view"]["brokers"])) == ("o", 1)
        say(socket, unsubscribe="o")
        say(socket, subscribe={"id": "t", "kind": "topics", "every_ms": 250})
        assert "live-1" not in str(heard(socket))
        topic_of(user, "live-1")
        while "live-1" not in str(changed := heard(socket)):
            pass
        assert changed["id"] == "t"
        for kind in ("groups", "queues"):
            say(socket, subscribe={"id": kind, "kind": kind})
            while (answer := heard(socket))["id"] != kind:
                pass
            assert kind in answer["view"]


def test_a_page_follows_a_topic_through_a_filter(broker: BrokerProcess, user: User) -> None:
    topic = topic_of(user, "live-2")
    send(user, topic, "a", key="x")
    with page(broker) as socket:
        say(socket, subscribe={"id": "m", "kind": "tail", "name": "live-2", "begin": "start", "filter": "key = 'x'"})
        assert heard(socket)["message"]["text"] == "a"
        send(user, topic, "b", key="y")
        send(user, topic, "c", key="x")
        [message] = user.ask("GET", f"{topic}/partitions/0/messages?offset=2")[1]["messages"]
        assert heard(socket) == {"id": "m", "message": message}
        say(socket, unsubscribe="m")
        say(socket, subscribe={"id": "none", "kind": "tail", "name": "live-none"})
        assert heard(socket)["view"]["error"]["code"] == "unknown-topic"


def test_what_a_page_is_too_slow_for_is_skipped_and_counted(broker: BrokerProcess, user: User) -> None:
    topic = topic_of(user, "live-3")
    with page(broker) as socket:
        say(socket, subscribe={"id": "m", "kind": "tail", "name": "live-3", "begin": "start"})
        for part in range(40):
            send(user, topic, *[f"{part * 50 + n} " + "x" * 10_000 for n in range(50)])  # 20 MB that nobody takes
        seen, skipped, last = 0, 0, -1
        while last < 1999:
            answer = heard(socket)
            number = int(answer["message"]["text"].split()[0])
            assert number == last + 1 + answer.get("skipped", 0)
            seen, skipped, last = seen + 1, skipped + answer.get("skipped", 0), number
    assert seen + skipped == 2000
    assert skipped


# --- in a cluster
def test_every_broker_pushes_what_others_lead(trio: list[BrokerProcess]) -> None:
    with User(trio[0]) as user:
        for number, broker in enumerate(trio):
            topic = topic_of(user, f"push-trio-{number}", 6)
            queue = queue_of(user, f"push-trio-{number}-q", topic=f"push-trio-{number}")
            for n in range(12):
                send(user, topic, f"m{n}", key=f"k{n}")
            with events(broker, f"{topic}/events", begin="start") as stream:
                assert {stream.data()["text"] for _ in range(12)} == {f"m{n}" for n in range(12)}
                send(user, topic, "more")
                assert stream.data()["text"] == "more"
            with line(broker, f"{queue}/socket", credit=1) as socket:
                got: set[str] = set()
                while len(got) < 13:
                    message = heard(socket)
                    if message["type"] == "message":
                        got.add(message["message"]["text"])
                        say(socket, ack=[message["message"]["receipt"]])
