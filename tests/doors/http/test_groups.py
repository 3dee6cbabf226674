"""Groups over HTTP: looking, moving, and being a member."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer

from runnel.testing.process import BrokerProcess

from .api import Api


def joined(api: Api, group: str, topic: str, **settings: Any) -> str:
    return str(api.ok("POST", f"/v1/groups/{group}/members", {"topics": [topic], **settings})["member"])


def polled(api: Api, group: str, member: str, query: str = "") -> dict[str, Any]:
    told: dict[str, Any] = api.ok("POST", f"/v1/groups/{group}/members/{member}/poll?wait_ms=5000{query}")
    return told


def poll_until(api: Api, group: str, member: str, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    while not holds(told := polled(api, group, member)):
        pass
    return told


def values(told: dict[str, Any]) -> list[Any]:
    return [each["value"] for each in told["messages"]]


def test_a_member_reads_commits_and_the_next_goes_on(api: Api) -> None:
    api.ok("POST", "/v1/topics/g1/messages", [{"value": n} for n in range(10)])
    member = joined(api, "g1", "g1")
    assert values(poll_until(api, "g1", member, values)) == [*range(10)]
    offsets = {"offsets": [{"topic": "g1", "partition": 0, "offset": 4}]}
    assert api.post(f"/v1/groups/g1/members/{member}/commit", offsets).status == 204
    assert api.ask("DELETE", f"/v1/groups/g1/members/{member}").status == 204
    told = api.ok("GET", "/v1/groups/g1")
    assert (told["state"], told["lag"], told["members"]) == ("Empty", 6, [])
    member = joined(api, "g1", "g1")
    assert values(poll_until(api, "g1", member, values)) == [*range(4, 10)]
    assert api.post(f"/v1/groups/g1/members/{member}/commit", {}).status == 204
    assert api.ok("GET", "/v1/groups/g1")["lag"] == 0


def test_an_answer_that_was_lost_comes_again_to_who_counts(api: Api) -> None:
    api.ok("POST", "/v1/topics/g2/messages", [{"value": n} for n in range(4)])
    member = joined(api, "g2", "g2")
    first = poll_until(api, "g2", member, values)
    number = first["number"]
    assert values(first) == [0, 1, 2, 3]
    assert polled(api, "g2", member, f"&after={number - 1}") == first
    api.ok("POST", "/v1/topics/g2/messages", {"value": 4})
    assert values(polled(api, "g2", member, f"&after={number}")) == [4]


def test_members_over_http_and_kafka_share_a_group(api: Api, broker: BrokerProcess) -> None:
    api.ok("POST", "/v1/topics", {"name": "g3", "partitions": 2})
    member = joined(api, "g3", "g3")
    poll_until(api, "g3", member, lambda told: len(told["partitions"]) == 2)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka, "group.id": "g3", "partition.assignment.strategy": "range",
            "auto.offset.reset": "earliest",
        }
    )  # fmt: skip
    consumer.subscribe(["g3"])
    held = 2
    while len(consumer.assignment()) != 1 or held != 1:
        consumer.poll(0.05)
        held = len(api.ok("POST", f"/v1/groups/g3/members/{member}/poll?wait_ms=100")["partitions"])
    assert len(api.ok("GET", "/v1/groups/g3")["members"]) == 2
    consumer.close()
    poll_until(api, "g3", member, lambda told: len(told["partitions"]) == 2)


def test_a_member_that_nobody_asks_for_leaves(api: Api) -> None:
    api.ok("POST", "/v1/topics", {"name": "g4"})
    member = joined(api, "g4", "g4", expires_ms=1_000)
    poll_until(api, "g4", member, lambda told: told["partitions"])
    while api.ok("GET", "/v1/groups/g4")["state"] != "Empty":
        pass
    assert api.post(f"/v1/groups/g4/members/{member}/poll").code == "no-such-member"
    assert api.post(f"/v1/groups/g4/members/{member}/commit", {}).code == "no-such-member"


def committed_of(api: Api, group: str) -> int | None:
    [lag] = api.ok("GET", f"/v1/groups/{group}")["partitions"]
    offset: int | None = lag["committed"]
    return offset


def test_a_commit_of_nothing_commits_nothing_and_one_of_all_everything(api: Api) -> None:
    api.ok("POST", "/v1/topics/g9/messages", [{"value": n} for n in range(5)])
    member = joined(api, "g9", "g9")
    poll_until(api, "g9", member, lambda told: told["messages"])
    commit = f"/v1/groups/g9/members/{member}/commit"
    for field in ("offsets", "ids"):
        assert api.post(commit, {field: []}).status == 204
        assert committed_of(api, "g9") is None
    assert api.post(commit, {"ids": ["g9/0/3", "g9/0/2"]}).status == 204
    assert committed_of(api, "g9") == 3
    assert api.post(commit, {}).status == 204
    assert committed_of(api, "g9") == 5


@pytest.mark.parametrize("place", [(0, 10**23), (10**23, 1), (0, -1), (-1, 0)])
def test_an_offset_that_can_not_be_is_refused(api: Api, place: tuple[int, int]) -> None:
    offset = {"topic": "g10", "partition": place[0], "offset": place[1]}
    assert api.post("/v1/groups/g10/members/1-0/commit", {"offsets": [offset]}).code == "invalid-input"
    assert (
        api.post("/v1/groups/g10/members/1-0/commit", {"ids": [f"g10/{place[0]}/{place[1]}"]}).code == "invalid-input"
    )


@pytest.mark.parametrize("id", ["", "g10", "0/1", "/0/1", "g10/0/", "g10/x/1", "g10/0/²"])
def test_an_id_that_is_none_is_refused(api: Api, id: str) -> None:
    assert api.post("/v1/groups/g10/members/1-0/commit", {"ids": [id]}).code == "invalid-input"


def test_a_member_belongs_to_its_group(api: Api) -> None:
    api.ok("POST", "/v1/topics", {"name": "g5"})
    member = joined(api, "g5", "g5")
    assert api.post(f"/v1/groups/other/members/{member}/poll").code == "no-such-member"
    assert api.post("/v1/groups/g5/members/nonsense/poll").code == "no-such-member"
    assert api.post("/v1/groups/g5/members", {"topics": ["not-there"]}).code == "unknown-topic"
    assert api.post("/v1/groups/g5/members", {"topics": []}).code == "invalid-input"
    assert api.ask("DELETE", f"/v1/groups/g5/members/{member}").status == 204


def test_a_group_without_members_can_be_moved_and_deleted(api: Api) -> None:
    api.ok("POST", "/v1/topics/g6/messages", [{"value": n, "timestamp_ms": 1_000 + n} for n in range(10)])
    planned = api.ok("POST", "/v1/groups/g6/seek?dry_run=true", {"topic": "g6", "to": "end"})
    assert planned["partitions"] == [{"topic": "g6", "partition": 0, "before": None, "after": 10}]
    assert api.get("/v1/groups/g6").code == "group-not-found"
    places = {"start": 0, "end": 10}
    for to, after in places.items():
        assert api.ok("POST", "/v1/groups/g6/seek", {"topic": "g6", "to": to})["partitions"][0]["after"] == after
    assert (
        api.ok("POST", "/v1/groups/g6/seek", {"topic": "g6", "to": "offset", "offset": 3})["partitions"][0]["after"]
        == 3
    )
    assert (
        api.ok("POST", "/v1/groups/g6/seek", {"topic": "g6", "to": "time", "time": 1_007})["partitions"][0]["after"]
        == 7
    )
    assert api.post("/v1/groups/g6/seek", {"topic": "g6", "to": "time"}).code == "invalid-input"
    assert api.post("/v1/groups/g6/seek", {"topic": "g6", "to": "start", "partitions": [1]}).code == "unknown-topic"
    assert "g6" in [each["group"] for each in api.ok("GET", "/v1/groups")["groups"]]
    assert api.ask("DELETE", "/v1/groups/g6").status == 204
    assert "g6" not in [each["group"] for each in api.ok("GET", "/v1/groups")["groups"]]


def test_a_group_with_members_can_not(api: Api) -> None:
    api.ok("POST", "/v1/topics", {"name": "g7"})
    member = joined(api, "g7", "g7")
    poll_until(api, "g7", member, lambda told: told["partitions"])
    assert api.post("/v1/groups/g7/seek", {"topic": "g7", "to": "start"}).code == "group-not-empty"
    assert api.ask("DELETE", "/v1/groups/g7").code == "group-not-empty"


def test_the_group_of_a_queue_is_deleted_with_the_queue_alone(api: Api) -> None:
    api.ok("POST", "/v1/queues", {"name": "g8"})
    refused = api.ask("DELETE", "/v1/groups/g8")
    assert (refused.status, refused.code) == (409, "group-is-queue")
