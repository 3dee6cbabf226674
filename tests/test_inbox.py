"""Messages between users over HTTP, on real brokers: in order, each once, whoever falls."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from tests.conftest import cluster_broker

from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper

LIMIT_S = 60.0
MIB = 1 << 20
CLOCKS_APART_S = 0.02  # the broker's and this one's, which count in whole milliseconds or less


class User:
    """Somebody with a connection of their own."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._connection = HTTPConnection(broker.http, timeout=LIMIT_S)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body)
        self._connection.request(method, path, content, headers or {})
        answer = self._connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None

    def send(self, to: str, message: str, sender: str = "alice") -> str:
        status, answer = self.ask("POST", "/send", {"from_user": sender, "to_user": to, "message": message})
        assert (status, answer["status"]) == (200, "success"), answer
        return str(answer["message_id"])

    def receive(self, user: str, after: str | None = None, **more: Any) -> list[dict[str, str]]:
        query = {"user_id": user, **({"last_message_id": after} if after else {}), **more}
        status, answer = self.ask("GET", "/receive?" + urlencode(query))
        assert status == 200, answer
        assert list(answer) == ["messages"]
        return list(answer["messages"])

    def all(self, user: str, after: str | None = None) -> list[dict[str, str]]:
        """To the end, a few at a time."""
        found: list[dict[str, str]] = []
        while part := self.receive(user, after, limit=7):
            found += part
            after = part[-1]["message_id"]
        return found

    def __enter__(self) -> "User":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


@pytest.fixture
def someone(broker: BrokerProcess) -> Iterator[User]:
    with User(broker) as user:
        yield user


def texts(messages: list[dict[str, str]]) -> list[str]:
    return [one["message"] for one in messages]


def test_a_message_is_received_as_it_was_sent(someone: User) -> None:
    message_id = someone.send("bob-1", "Grüße ☃\n", sender="älice")
    [got] = someone.receive("bob-1")
    assert datetime.fromisoformat(got.pop("timestamp")).tzinfo is not None
    assert got == {"message_id": message_id, "from_user": "älice", "to_user": "bob-1", "message": "Grüße ☃\n"}


def test_messages_come_in_order_from_any_id_on(someone: User) -> None:
    ids = [someone.send("bob-2", f"m{n}") for n in range(30)]
    assert ids == sorted(ids)
    assert len({len(one) for one in ids}) == 1
    assert texts(someone.all("bob-2")) == [f"m{n}" for n in range(30)]
    for n in (0, 13, 29):
        assert texts(someone.all("bob-2", ids[n])) == [f"m{k}" for k in range(n + 1, 30)]
    assert texts(someone.receive("bob-2", limit=2)) == ["m0", "m1"]  # nothing was taken out


def test_users_do_not_see_each_others_messages(someone: User) -> None:
    for n in range(20):
        someone.send(f"crowd-{n}", f"for {n}")
    for n in range(20):
        assert texts(someone.receive(f"crowd-{n}")) == [f"for {n}"]
    assert someone.receive("crowd-nobody") == []


def test_who_waits_gets_a_message_when_it_comes(broker: BrokerProcess, someone: User) -> None:
    first = someone.send("bob-3", "old")
    with User(broker) as other, User(broker) as third, ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(other.receive, "bob-3", first, wait_ms=30_000)
        stranger = threads.submit(third.receive, "bob-3-not", None, wait_ms=2_000)
        time.sleep(0.2)  # so that it waits, most likely: it must work either way
        began = time.monotonic()
        someone.send("bob-3", "new")
        assert texts(waiting.result()) == ["new"]
        assert time.monotonic() - began < 20
        assert stranger.result() == []


def test_a_wait_ends_when_its_time_is_up(someone: User) -> None:
    began = time.monotonic()
    assert someone.receive("bob-4", wait_ms=200) == []
    assert time.monotonic() - began >= 0.2 - CLOCKS_APART_S


def later(user: User, to: str, body: dict[str, Any], **headers: str) -> str:
    """Send a message for later; the id under which it waits."""
    message = {"from_user": "alice", "to_user": to, "message": "x"} | body
    status, told = user.ask("POST", "/send", message, headers)
    assert (status, told["status"], [*told]) == (200, "success", ["status", "scheduled_id"])
    return str(told["scheduled_id"])


@pytest.mark.parametrize("headers", [{}, {"Connection": "keep-alive, x"}], ids=["hot", "cold"])
def test_a_message_for_later_gets_its_place_when_it_is_due(someone: User, headers: dict[str, str]) -> None:
    for patience_ms in (3_000, 15_000, 60_000):  # a busy machine may need that long to have all of them there
        name = f"late-{len(headers)}-{patience_ms}"
        someone.send(name, "at once")
        begun = time.time_ns() // 1_000_000
        later(someone, name, {"message": "third", "deliver_at": begun + patience_ms}, **headers)
        later(someone, name, {"message": "second", "deliver_at": begun + patience_ms - 500}, **headers)
        later(someone, name, {"message": "first", "delay_ms": 100}, **headers)
        if time.time_ns() // 1_000_000 < begun + patience_ms - 1_000:
            break
    got: list[dict[str, str]] = []
    while len(got) < 4:
        got += someone.receive(name, got[-1]["message_id"] if got else None, wait_ms=5_000)
        assert "third" not in texts(got) or time.time_ns() // 1_000_000 >= begun + patience_ms
    assert texts(got) == ["at once", "first", "second", "third"]
    assert texts(someone.receive(name, got[1]["message_id"])) == ["second", "third"]


def test_a_message_for_later_can_be_cancelled_and_sent_again_under_a_key(someone: User) -> None:
    once = {"Idempotency-Key": "remind-carol"}
    first = later(someone, "carol-later", {"delay_ms": 3_600_000}, **once)
    assert later(someone, "carol-later", {"delay_ms": 3_600_000}, **once) == first
    for _ in range(2):
        assert someone.ask("DELETE", f"/v1/schedule/{quote(first, safe='')}")[0] == 204
    assert later(someone, "carol-later", {"delay_ms": 3_600_000}, **once) == first
    assert someone.ask("GET", f"/v1/schedule/{quote(first, safe='')}")[0] == 404, "it stays cancelled"
    both = {"from_user": "a", "to_user": "b", "message": "m", "delay_ms": 5, "deliver_at": 7}
    for _ in range(3):
        assert someone.ask("POST", "/send", both)[0] == 422


def test_a_message_of_a_kafka_client_arrives_too(broker: BrokerProcess, someone: User) -> None:
    someone.send("kay", "over HTTP")
    producer = Producer({"bootstrap.servers": broker.kafka, "partitioner": "murmur2_random"})
    producer.produce("inbox", key="kay", value="through Kafka", headers={"runnel-from": b"kafka"})
    producer.flush(LIMIT_S)
    assert [(one["from_user"], one["message"]) for one in someone.receive("kay")] == [
        ("alice", "over HTTP"),
        ("kafka", "through Kafka"),
    ]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("user_id=bob&last_message_id=7", 400, "invalid-request"),
        ("user_id=bob&last_message_id=" + "0" * 28, 400, "invalid-request"),
        ("user_id=", 422, "invalid-input"),
        ("", 422, "invalid-input"),
        ("user_id=bob&wait_ms=-1", 422, "invalid-input"),
        ("user_id=bob&limit=100000", 422, "invalid-input"),
        ("user_id=bob&last_mesage_id=7", 422, "invalid-input"),
    ],
)
def test_a_wrong_question_is_refused_with_a_reason(someone: User, query: str, status: int, code: str) -> None:
    assert [status, code] == [(answer := someone.ask("GET", f"/receive?{query}"))[0], answer[1]["code"]]
    assert answer[1]["next"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"from_user": "a", "to_user": "b"}, 422),
        ({"from_user": "a", "to_user": "", "message": ""}, 422),
        ({"from_user": "a", "to_user": "b", "message": 7}, 422),
        ({"from_user": "a", "to_user": "b", "message": "x", "mesage": "x"}, 422),
        ({"from_user": "a", "to_user": "ü" * 600, "message": "x"}, 400),
        ({"from_user": "a", "to_user": "b", "message": "x" * 1_100_000}, 413),
    ],
)
def test_a_wrong_message_is_refused_the_same_way_by_both_paths(someone: User, body: Any, status: int) -> None:
    hot = someone.ask("POST", "/send", body)
    plain = someone.ask(
        "POST", "/send", body, {"Origin": f"http://{someone._connection.host}:{someone._connection.port}"}
    )
    assert hot == plain
    assert hot[0] == status


def test_messages_that_were_trimmed_are_received_no_more(tmp_path: Path) -> None:
    """They used to be, out of memory, until the broker was started again."""
    with BrokerProcess(tmp_path / "data") as broker, User(broker) as user:
        first = user.send("bob", "trimmed")
        user.send("bob", "trimmed too")
        assert texts(user.receive("bob")) == ["trimmed", "trimmed too"]
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        partitions = admin.list_topics("inbox", LIMIT_S).topics["inbox"].partitions
        asked = [TopicPartition("inbox", number, -1) for number in partitions]
        for deleted in admin.delete_records(asked).values():
            deleted.result(LIMIT_S)
        assert user.receive("bob") == user.receive("bob", first) == user.receive("bob", limit=1) == []
        user.send("bob", "kept")
        assert texts(user.receive("bob")) == texts(user.receive("bob", first)) == ["kept"]


def test_the_topic_gets_no_more_partitions(broker: BrokerProcess, someone: User) -> None:
    someone.send("bob-5", "x")
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    [refused] = admin.create_partitions([NewPartitions("inbox", 12)]).values()
    with pytest.raises(KafkaException, match="keeps its number of partitions"):
        refused.result()


def test_an_answer_is_bounded_in_bytes(someone: User) -> None:
    sent = [f"{n}" + "x" * 300_000 for n in range(8)]
    for text in sent:
        someone.send("bob-6", text)
    assert 3 <= len(someone.receive("bob-6")) < 8
    assert texts(someone.all("bob-6")) == sent


def test_a_lost_index_is_built_again_and_nobody_misses_anything(tmp_path: Path) -> None:
    """Some messages of one user among very many of others; a tail of the index has 32,768."""
    count, rare = 150_000, 10_000
    with BrokerProcess(tmp_path / "data") as broker:
        with User(broker) as user:
            user.send("crowd", "the topic is made")
        producer = Producer({"bootstrap.servers": broker.kafka, "partitioner": "murmur2_random", "linger.ms": 50})
        for n in range(count):
            key = "rare" if n % rare == 0 else f"u{n % 1_000}" if n % 3 else "crowd"
            while True:
                try:
                    producer.produce("inbox", key=key, value=f"m{n}")
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(LIMIT_S) == 0
        wanted = [f"m{n}" for n in range(0, count, rare)]

        def check() -> None:
            with User(broker) as user:
                got = user.all("rare")
                assert texts(got) == wanted
                for place in (0, 7, 14):
                    assert texts(user.all("rare", got[place]["message_id"])) == wanted[place + 1 :]
                assert len(user.receive("u7", limit=1000)) == sum(n % 1_000 == 7 and n % 3 > 0 for n in range(count))

        check()
        until(lambda: any((tmp_path / "data" / "keys").glob("*/*.keys")))
        broker.kill()
        broker.start()
        check()
        broker.kill()
        for path in (tmp_path / "data" / "keys").glob("*/*.keys"):
            data = bytearray(path.read_bytes())
            data[len(data) // 3] ^= 1
            path.write_bytes(data)
        broker.start()
        check()
        broker.kill()
        shutil.rmtree(tmp_path / "data" / "keys")
        broker.start()
        check()


# --- whoever falls
class Senders:
    """Users who send until told to stop, and remember what was acknowledged."""

    def __init__(self, brokers: list[BrokerProcess], receivers: list[str]) -> None:
        self._brokers = brokers
        self._receivers = receivers
        self._over = threading.Event()
        self.acked: dict[str, dict[str, str]] = {one: {} for one in receivers}  # id -> text
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(4)]

    def _run(self, number: int) -> None:
        count, turn = 0, number
        while not self._over.is_set():
            with User(self._brokers[turn % len(self._brokers)]) as user, suppress(OSError, HTTPException):
                while not self._over.is_set():
                    to, text = self._receivers[count % len(self._receivers)], f"{number}-{count}"
                    count += 1
                    status, answer = user.ask("POST", "/send", {"from_user": "s", "to_user": to, "message": text})
                    if status == 200:
                        assert answer["message_id"] not in self.acked[to]
                        self.acked[to][answer["message_id"]] = text
            time.sleep(0.05)
            turn += 1  # another one

    def __enter__(self) -> "Senders":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def count(self) -> int:
        return sum(map(len, self.acked.values()))


class Follower:
    """A user who receives by long polling through whatever happens, resuming behind the last id."""

    def __init__(self, brokers: list[BrokerProcess], user: str) -> None:
        self._brokers = brokers
        self._user = user
        self._over = threading.Event()
        self.got: list[dict[str, str]] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        turn = 0
        while not self._over.is_set():
            turn += 1
            with User(self._brokers[turn % len(self._brokers)]) as user, suppress(OSError, HTTPException):
                while not self._over.is_set():
                    after = {"last_message_id": self.got[-1]["message_id"]} if self.got else {}
                    query = urlencode({"user_id": self._user, "wait_ms": 300, **after})
                    status, answer = user.ask("GET", f"/receive?{query}")
                    if status == 200:
                        self.got += answer["messages"]
                    else:
                        time.sleep(0.05)
            time.sleep(0.05)

    def stop(self) -> list[dict[str, str]]:
        self._over.set()
        self.thread.join()
        return self.got


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def judge(acked: dict[str, str], got: list[dict[str, str]]) -> None:
    """All that was acknowledged is there, each message once, in the order of the ids."""
    ids = [one["message_id"] for one in got]
    assert ids == sorted(set(ids))
    assert acked.items() <= {(one["message_id"], one["message"]) for one in got}
    assert len({one["message"] for one in got}) == len(got)


def test_nothing_is_missed_or_seen_twice_when_the_broker_is_killed(tmp_path: Path) -> None:
    receivers = [f"r{n}" for n in range(6)]
    with BrokerProcess(tmp_path / "data") as broker:
        followers = {one: Follower([broker], one) for one in receivers}
        with Senders([broker], receivers) as senders:
            for lives in range(1, 4):
                until(lambda goal=300 * lives: senders.count > goal)  # type: ignore[misc]
                broker.kill()
                broker.start()
            until(lambda goal=senders.count + 100: senders.count > goal)  # type: ignore[misc]
        until(lambda: all(len(followers[one].got) >= len(senders.acked[one]) for one in receivers))
        with User(broker) as reader:
            for one in receivers:
                judge(senders.acked[one], reader.all(one))
                judge(senders.acked[one], followers[one].stop())


def test_nothing_is_missed_or_seen_twice_when_a_leader_is_killed(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    receivers = [f"r{n}" for n in range(6)]
    with ExitStack() as stack:
        brokers = [stack.enter_context(cluster_broker(zookeeper, tmp_path, number)) for number in (1, 2, 3)]
        with User(brokers[0]) as first:
            first.send("r0", "the topic is made")
        followers = {one: Follower(brokers, one) for one in receivers}
        with Senders(brokers, receivers) as senders:
            for victim in (1, 0, 2):
                until(lambda goal=senders.count + 150: senders.count > goal)  # type: ignore[misc]
                brokers[victim].kill()
                until(lambda goal=senders.count + 150: senders.count > goal)  # type: ignore[misc]
                brokers[victim].start()
        until(lambda: all(len(followers[one].got) >= len(senders.acked[one]) for one in receivers))
        readers = [stack.enter_context(User(broker)) for broker in brokers]
        for one in receivers:
            answers = [user.all(one) for user in readers]
            judge(senders.acked[one], answers[0])
            assert answers[0] == answers[1] == answers[2]
            judge(senders.acked[one], followers[one].stop())


# --- the two calls as they are asked for by clients of all kinds


@pytest.mark.parametrize("headers", [{}, {"Connection": "keep-alive, x"}, {"Idempotency-Key": "success"}])
def test_the_status_of_a_message_that_is_kept_is_success(someone: User, headers: dict[str, str]) -> None:
    status, answer = someone.ask("POST", "/send", {"from_user": "a", "to_user": "ok", "message": "x"}, headers)
    assert (status, answer["status"], [*answer]) == (200, "success", ["status", "message_id"])


def test_receive_takes_its_parameters_from_the_query_or_from_a_body(someone: User) -> None:
    ids = [someone.send("body-bob", f"m{n}") for n in range(3)]

    def got(path: str, body: Any = None) -> list[str]:
        status, answer = someone.ask("GET", path, body)
        assert status == 200, answer
        return texts(answer["messages"])

    for _ in range(2):  # also when the same headers have come before
        assert got("/receive?user_id=body-bob") == ["m0", "m1", "m2"]
        assert got("/receive", {"user_id": "body-bob"}) == ["m0", "m1", "m2"]
        assert got("/receive", {"user_id": "body-bob", "last_message_id": ids[0]}) == ["m1", "m2"]
        assert got("/receive?user_id=body-bob", {"last_message_id": ids[1]}) == ["m2"]
        assert got(f"/receive?user_id=body-bob&last_message_id={ids[1]}", {"limit": 1}) == ["m2"]
        assert got("/receive?limit=1", {"user_id": "body-bob", "last_message_id": None}) == ["m0"]
        assert got("/receive?user_id=body-bob", {}) == ["m0", "m1", "m2"]


def test_an_empty_last_message_id_is_none(someone: User) -> None:
    someone.send("empty-bob", "m0")
    for path, body in (
        ("/receive?user_id=empty-bob&last_message_id=", None), ("/receive?last_message_id=&user_id=empty-bob", None),
        ("/receive", {"user_id": "empty-bob", "last_message_id": ""}),
    ):  # fmt: skip
        status, answer = someone.ask("GET", path, body)
        assert (status, texts(answer["messages"])) == (200, ["m0"])


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/receive", None, "user_id is missing"),
        ("/receive", {}, "user_id is missing"),
        ("/receive?user_id=a", {"user_id": "a"}, "user_id is in the query and in the body"),
        ("/receive?user_id=a&limit=1", {"limit": 2}, "limit is in the query and in the body"),
        ("/receive?user_id=a", {"last_mesage_id": "x"}, "unknown field `last_mesage_id`"),
        ("/receive?user_id=a", ["a"], "body"),
        ("/receive?user_id=a", {"limit": 0}, "limit"),
    ],
)
def test_a_body_of_receive_is_understood_or_refused(someone: User, path: str, body: Any, reason: str) -> None:
    status, answer = someone.ask("GET", path, body)
    assert (status, answer["code"]) == (422, "invalid-input")
    assert reason in answer["detail"]


@pytest.mark.parametrize(
    "message", ["x" * MIB, '"' * MIB, "\x01" * MIB, "ü" * (MIB // 2), "\U0001f600" * (MIB // 4)],
    ids=["plain", "quotes", "controls", "two bytes", "four bytes"],
)  # fmt: skip
@pytest.mark.parametrize("more", ["at once", "once", "later"])
def test_a_message_of_a_mebibyte_passes(someone: User, message: str, more: str) -> None:
    """Also as JSON of ASCII alone, where each character may take six."""
    name = f"large-{more}-{hash(message)}"
    body = {"from_user": "a" * 1024, "to_user": name, "message": message}
    headers = {"Idempotency-Key": name} if more == "once" else {}
    if more == "later":
        body["delay_ms"] = 1  # type: ignore[assignment]
    status, answer = someone.ask("POST", "/send", body, headers)
    assert status == 200, answer
    assert texts(someone.receive(name, wait_ms=60_000)) == [message]
