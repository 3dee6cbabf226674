"""A leader dies while messages are sent over HTTP, each until it is acknowledged: every one is there once, in order."""

from contextlib import ExitStack
from pathlib import Path

from tests.conftest import cluster_broker

from runnel.testing.zookeeper import ZooKeeper

from .api import Api

MESSAGES = 60
KILL_AT = 20


def test_messages_survive_the_death_of_their_leader(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with ExitStack() as stack:
        brokers = {n: stack.enter_context(cluster_broker(zookeeper, tmp_path, n)) for n in (1, 2, 3)}
        first = Api(brokers[1].http)
        settings = {"min.insync.replicas": 2}
        first.ok("POST", "/v1/topics", {"name": "t", "partitions": 1, "replicas": 3, "settings": settings})
        leader = first.ok("GET", "/v1/topics/t")["partitions"][0]["leader"]
        others = [Api(broker.http) for number, broker in brokers.items() if number != leader]
        for number in range(MESSAGES):
            if number == KILL_AT:
                brokers[leader].kill()
            send_until_kept(others[number % 2], number)
        assert read_all(others[0]) == read_all(others[1]) == [*range(MESSAGES)]
        assert others[0].ok("GET", "/v1/topics/t")["partitions"][0]["leader"] != leader


def send_until_kept(api: Api, number: int) -> None:
    """As a client does it: the same message again, whatever the answer was."""
    while api.post("/v1/topics/t/messages", {"value": number, "message_id": str(number)}).status != 200:
        pass


def read_all(api: Api) -> list[int]:
    got: list[int] = []
    offset = 0
    while len(got) < MESSAGES:
        told = api.ok("GET", f"/v1/topics/t/partitions/0/messages?offset={offset}&wait_ms=5000")
        got += [each["value"] for each in told["messages"]]
        offset = told["next_offset"]
    return got
