"""`Idempotency-Key`: however often a request comes, and to whichever broker, it is done once and answered the same."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from typing import Any

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
