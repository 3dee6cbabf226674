"""`Idempotency-Key`: however often a request comes, and to whichever broker, it is done once and answered the same."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.conftest import cluster_broker
from tests.test_inbox import User, until

from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper


def post(user: User, path: str, body: Any, key: str) -> tuple[int, Any]:
    return user.ask("POST", path, body, {"Idempotency-Key": key})


def letter(text: str, to: str = "bob") -> dict[str, str]:
    return {"from_user": "alice", "to_user": to, "message": text}


def everything(user: User, topic: str) -> list[str]:
    """All messages of a topic, of all its partitions."""
    found, number = [], 0
    while (answer := user.ask("GET", f"/v1/topics/{topic}/partitions/{number}/messages?limit=10000"))[0] == 200:
        found += [one["text"] if "text" in one else one["value"] for one in answer[1]["messages"]]
        number += 1
    assert number
    return sorted(found)


def test_a_message_that_is_sent_again_is_there_once(broker: BrokerProcess) -> None:
    with User(broker) as user:
        first = post(user, "/send", letter("once", "ida"), "ida-1")
        assert first[0] == 200
        assert [post(user, "/send", letter("once", "ida"), "ida-1") for _ in range(3)] == [first] * 3
        assert [one["message_id"] for one in user.receive("ida")] == [first[1]["message_id"]]
        assert post(user, "/send", letter("once", "ida"), "ida-2")[1] != first[1]
        assert len(user.receive("ida")) == 2


@pytest.mark.parametrize("other", [letter("another", "ivy"), letter("one", "eve")])
def test_another_request_under_the_same_key_is_refused(broker: BrokerProcess, other: dict[str, str]) -> None:
    with User(broker) as user:
        key = f"ivy-{other['to_user']}"
        assert post(user, "/send", letter("one", "ivy"), key)[0] == 200
        status, problem = post(user, "/send", other, key)
        assert (status, problem["code"]) == (422, "key-reused")
        assert post(user, "/v1/topics/ivy-t/messages", {"text": "x"}, key)[0] == 422


def test_many_messages_with_and_without_keys_are_there_once(broker: BrokerProcess) -> None:
    messages = [{"text": f"m{n}", **({"key": f"k{n % 3}"} if n % 2 else {})} for n in range(20)]
    with User(broker) as user:
        user.ask("POST", "/v1/topics", {"name": "once-many", "partitions": 4})
        first = post(user, "/v1/topics/once-many/messages", messages, "many")
        assert first[0] == 200, first
        assert post(user, "/v1/topics/once-many/messages", messages, "many") == first
        assert everything(user, "once-many") == sorted(f"m{n}" for n in range(20))
        assert len({(one["partition"], one["offset"]) for one in first[1]["results"]}) == 20


def test_a_message_for_later_is_parked_once(broker: BrokerProcess) -> None:
    message = {"text": "later", "delay_ms": 3_600_000}
    with User(broker) as user:
        user.ask("POST", "/v1/topics", {"name": "once-later"})
        first = post(user, "/v1/topics/once-later/messages", message, "later")
        assert first[0] == 200, first
        assert post(user, "/v1/topics/once-later/messages", message, "later") == first
        pending = user.ask("GET", "/v1/schedule?topic=once-later")[1]["messages"]
        assert [one["id"] for one in pending] == [first[1]["results"][0]["scheduled_id"]]


def test_requests_at_the_same_time_are_one(broker: BrokerProcess) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        users = [stack.enter_context(User(broker)) for _ in range(8)]
        for turn in range(5):
            answers = [
                one.result()
                for one in [threads.submit(post, user, "/send", letter("x", "ian"), f"ian-{turn}") for user in users]
            ]
            assert answers == [answers[0]] * 8
        assert len(users[0].receive("ian")) == 5


def test_a_key_has_its_limits(broker: BrokerProcess) -> None:
    with User(broker) as user:
        assert post(user, "/send", letter("x"), "k" * 256)[0] == 422
        assert post(user, "/send", letter("x"), "")[0] in (400, 422)


def sent_through(brokers: list[BrokerProcess], body: dict[str, str], key: str) -> Any:
    """Sent again to one broker after the other, until one answers."""
    answers: list[Any] = []

    def try_all() -> bool:
        for broker in brokers:
            try:
                with User(broker) as user:
                    answer = post(user, "/send", body, key)
            except (OSError, HTTPException):
                continue
            if answer[0] == 200:
                answers.append(answer)
                return True
            assert answer[0] >= 500, answer
        return False

    until(try_all)
    return answers[0]


def test_the_answer_outlives_a_crash(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with User(broker) as user:
            firsts = [post(user, "/send", letter(f"m{n}"), f"key-{n}") for n in range(30)]
        broker.kill()
        broker.start()
        with User(broker) as user:
            assert [post(user, "/send", letter(f"m{n}"), f"key-{n}") for n in range(30)] == firsts
            assert [one["message"] for one in user.all("bob")] == [f"m{n}" for n in range(30)]
            assert post(user, "/send", letter("other"), "key-3")[0] == 422


def test_requests_that_a_crash_left_without_an_answer_are_done_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        for turn in range(4):
            with ThreadPoolExecutor(16) as threads:
                waiting = [
                    threads.submit(sent_through, [broker], letter(f"{turn}-{n}"), f"{turn}-{n}") for n in range(40)
                ]
                broker.kill()
                broker.start()
                for one in waiting:
                    one.result()
        with User(broker) as user:
            texts = sorted(one["message"] for one in user.all("bob"))
            assert texts == sorted(f"{turn}-{n}" for turn in range(4) for n in range(40))


def test_another_broker_gives_the_same_answer(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with ExitStack() as stack:
        brokers = [stack.enter_context(cluster_broker(zookeeper, tmp_path, number)) for number in (1, 2, 3)]
        firsts = [sent_through(brokers, letter(f"m{n}"), f"key-{n}") for n in range(20)]
        others = [sent_through([brokers[n % 3]], letter(f"m{n}"), f"key-{n}") for n in range(20)]
        assert others == firsts
        brokers[1].kill()
        assert [sent_through([brokers[0], brokers[2]], letter(f"m{n}"), f"key-{n}") for n in range(20)] == firsts
        with User(brokers[2]) as user:
            assert sorted(one["message"] for one in user.all("bob")) == sorted(f"m{n}" for n in range(20))


# --- what fails


def refused(user: User, path: str, body: Any, key: str) -> str:
    status, problem = post(user, path, body, key)
    assert 400 <= status < 500, problem
    return str(problem["code"])


def test_a_request_that_was_refused_and_left_nothing_gives_its_key_back(broker: BrokerProcess) -> None:
    topic = "/v1/topics/once-small/messages"
    with User(broker) as user:
        user.ask("POST", "/v1/topics", {"name": "once-small", "settings": {"max.message.bytes": 1_000}})
        for turn in range(20):  # more often than records of a key are looked up at once
            assert refused(user, topic, {"text": "x" * (2_000 + turn)}, "small") == "batch-too-large"
        first = post(user, topic, {"text": "short"}, "small")
        assert first[0] == 200, first
        assert post(user, topic, {"text": "short"}, "small") == first
        assert refused(user, topic, {"text": "x" * 2_000}, "small") == "key-reused"
        assert everything(user, "once-small") == ["short"]


def test_a_message_for_later_that_was_refused_gives_its_key_back(broker: BrokerProcess) -> None:
    topic = "/v1/topics/once-compacted/messages"
    with User(broker) as user:
        user.ask("POST", "/v1/topics", {"name": "once-compacted", "settings": {"cleanup.policy": "compact"}})
        assert refused(user, topic, {"text": "x", "delay_ms": 3_600_000}, "compacted") == "invalid-record"
        assert post(user, topic, {"text": "x", "key": "k", "delay_ms": 3_600_000}, "compacted")[0] == 200


def test_a_request_of_which_something_is_kept_keeps_its_key(broker: BrokerProcess) -> None:
    topic = "/v1/topics/once-half/messages"
    with User(broker) as user:
        user.ask("POST", "/v1/topics", {"name": "once-half", "settings": {"max.message.bytes": 1_000}})
        half = [{"text": "short"}, {"text": "x" * 2_000}]
        for _ in range(3):
            assert refused(user, topic, half, "half") == "batch-too-large"
            assert refused(user, topic, [{"text": "other"}], "half") == "key-reused"
        assert everything(user, "once-half") == ["short"]
        settings = {"max.message.bytes": 100_000}
        assert user.ask("PATCH", "/v1/topics/once-half", {"settings": settings})[0] == 204
        assert post(user, topic, half, "half")[0] == 200
        assert everything(user, "once-half") == sorted(["short", "x" * 2_000]), "it went on where it stopped"


def test_a_key_that_was_given_back_is_so_after_a_crash(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        topic = "/v1/topics/once-crash/messages"
        with User(broker) as user:
            user.ask("POST", "/v1/topics", {"name": "once-crash", "settings": {"max.message.bytes": 1_000}})
            assert refused(user, topic, {"text": "x" * 2_000}, "crash") == "batch-too-large"
        broker.kill()
        broker.start()
        with User(broker) as user:
            first = post(user, topic, {"text": "short"}, "crash")
            assert first[0] == 200
        broker.kill()
        broker.start()
        with User(broker) as user:
            assert post(user, topic, {"text": "short"}, "crash") == first
            assert refused(user, topic, {"text": "x" * 2_000}, "crash") == "key-reused"


# --- cancelling


def cancel(user: User, id: str, key: str = "") -> tuple[int, Any]:
    """The answer, once there is one: a broker that has just begun reads its log first."""
    path = f"/v1/schedule/{quote(id, safe='')}"
    while (answer := user.ask("DELETE", path, headers={"Idempotency-Key": key} if key else {}))[0] == 503:
        pass
    return answer


def later(user: User, topic: str, text: str) -> str:
    status, answer = user.ask("POST", f"/v1/topics/{topic}/messages", {"text": text, "delay_ms": 3_600_000})
    assert status == 200, answer
    return str(answer["results"][0]["scheduled_id"])


def test_a_message_is_cancelled_as_often_as_somebody_asks(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with User(broker) as user:
            user.ask("POST", "/v1/topics", {"name": "cancel"})
            ids = [later(user, "cancel", f"m{n}") for n in range(4)]
            keyed = [(ids[0], ""), (ids[1], "cancel-1"), ("nobody", "cancel-nobody")]
            answers = [cancel(user, *one) for one in keyed]
            assert [status for status, _ in answers] == [204, 204, 404]
            assert [cancel(user, *one) for one in keyed] == answers
            assert cancel(user, ids[2], "cancel-1")[1]["code"] == "key-reused"
            assert len(user.ask("GET", "/v1/schedule?topic=cancel")[1]["messages"]) == 2
        for _ in range(2):
            broker.kill()
            for index in (tmp_path / "data").rglob("due.sqlite*"):
                index.unlink()  # what is known is in the log
            broker.start()
            with User(broker) as user:
                assert [cancel(user, *one) for one in keyed] == answers
                assert [cancel(user, id)[0] for id in (ids[0], ids[1], "nobody")] == [204, 204, 404]


def test_an_answer_that_was_given_under_a_key_stays(broker: BrokerProcess) -> None:
    """Though another message waits under the id by then."""
    with User(broker) as user:
        user.ask("POST", "/v1/topics", {"name": "cancel-again", "settings": {"dedup.window.ms": 1}})
        assert cancel(user, "cancel-me", "stays")[0] == 404
        message = {"text": "x", "delay_ms": 3_600_000, "message_id": "cancel-me"}
        assert user.ask("POST", "/v1/topics/cancel-again/messages", message)[0] == 200
        assert cancel(user, "cancel-me", "stays")[0] == 404
        assert cancel(user, "cancel-me")[0] == 204
