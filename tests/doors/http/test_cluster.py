"""Any broker of a cluster takes any call: it asks whoever leads, coordinates or controls."""

from typing import Any

import pytest

from runnel.testing.process import BrokerProcess

from .api import Api


@pytest.fixture
def apis(trio: list[BrokerProcess]) -> list[Api]:
    return [Api(broker.http) for broker in trio]


def everywhere(apis: list[Api], path: str) -> list[Any]:
    """What all brokers say to a question, once they say the same."""
    while True:
        told = [api.get(path) for api in apis]
        if all(each.status == 200 for each in told) and all(each.json == told[0].json for each in told):
            return [each.json for each in told]


def test_topics_are_made_changed_and_deleted_through_any_broker(apis: list[Api]) -> None:
    for number, api in enumerate(apis):
        name = f"http-{number}"
        assert api.post("/v1/topics", {"name": name, "partitions": 3, "replicas": 2}).status == 201
        assert api.ask("PATCH", f"/v1/topics/{name}", {"settings": {"retention.ms": 1_000}}).status == 204
        assert everywhere(apis, f"/v1/topics/{name}")[0]["settings"] == {"retention.ms": "1000"}
        assert api.ask("POST", f"/v1/topics/{name}/partitions", {"count": 4}).status == 204
        assert api.ask("DELETE", f"/v1/topics/{name}").status == 204


def test_messages_are_sent_and_read_through_any_broker(apis: list[Api]) -> None:
    apis[0].ok("POST", "/v1/topics", {"name": "http-any", "partitions": 6, "replicas": 2})
    everywhere(apis, "/v1/topics/http-any")
    for partition in range(6):
        for number, api in enumerate(apis):
            message = {"value": number, "partition": partition, "message_id": f"{partition}/{number}"}
            for _ in range(2):
                api.ok("POST", "/v1/topics/http-any/messages", [message, {"value": number, "partition": partition}])
    for partition in range(6):
        path = f"/v1/topics/http-any/partitions/{partition}/messages?limit=100&wait_ms=5000"
        for told in everywhere(apis, path):
            assert [each["value"] for each in told["messages"]] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_who_waits_at_another_broker_gets_the_message_when_it_comes(apis: list[Api]) -> None:
    apis[0].ok("POST", "/v1/topics", {"name": "http-wait", "partitions": 3})
    told = everywhere(apis, "/v1/topics/http-wait")[0]
    for partition in told["partitions"]:
        elsewhere = apis[partition["leader"] % 3]  # brokers are numbered from 1: this is the next one
        sent = {"value": "x", "partition": partition["partition"], "delay_ms": 300}
        elsewhere.ok("POST", "/v1/topics/http-wait/messages", sent)
        path = f"/v1/topics/http-wait/partitions/{partition['partition']}/messages?wait_ms=60000"
        assert [each["value"] for each in elsewhere.ok("GET", path)["messages"]] == ["x"]


def test_a_member_is_asked_for_through_any_broker(apis: list[Api]) -> None:
    apis[0].ok("POST", "/v1/topics", {"name": "http-group", "partitions": 3})
    everywhere(apis, "/v1/topics/http-group")
    apis[0].ok("POST", "/v1/topics/http-group/messages", [{"value": n, "partition": n % 3} for n in range(30)])
    member = apis[0].ok("POST", "/v1/groups/http-group/members", {"topics": ["http-group"]})["member"]
    got: list[int] = []
    turn = 0
    while len(got) < 30:
        path = f"/v1/groups/http-group/members/{member}/poll?wait_ms=5000&limit=7"
        got += [each["value"] for each in apis[turn % 3].ok("POST", path)["messages"]]
        turn += 1
    assert sorted(got) == [*range(30)]
    assert apis[1].ask("POST", f"/v1/groups/http-group/members/{member}/commit", {}).status == 204
    assert [each["lag"] for each in everywhere(apis, "/v1/groups/http-group")] == [0, 0, 0]
    assert apis[2].ask("DELETE", f"/v1/groups/http-group/members/{member}").status == 204
    assert apis[0].post(f"/v1/groups/http-group/members/{member}/poll").code == "no-such-member"


def test_a_queue_is_used_through_any_broker(apis: list[Api]) -> None:
    apis[0].ok("POST", "/v1/queues", {"name": "http-queue", "partitions": 3})
    everywhere(apis, "/v1/topics/http-queue")
    apis[1].ok("POST", "/v1/queues/http-queue/messages", [{"value": n, "partition": n % 3} for n in range(30)])
    got: list[int] = []
    turn = 0
    while len(got) < 30:
        messages = apis[turn % 3].ok("POST", "/v1/queues/http-queue/receive?limit=4&wait_ms=5000")["messages"]
        turn += 1
        receipts = [each["receipt"] for each in messages]
        if receipts:
            assert apis[turn % 3].ok("POST", "/v1/queues/http-queue/ack", {"receipts": receipts})["refused"] == []
        got += [each["value"] for each in messages]
    assert sorted(got) == [*range(30)]


def test_the_cluster_is_the_same_from_everywhere(apis: list[Api], trio: list[BrokerProcess]) -> None:
    for told in everywhere(apis, "/v1/cluster"):
        assert {each["broker"]: (each["kafka"], each["http"]) for each in told["brokers"]} == {
            number: (broker.kafka, broker.http) for number, broker in enumerate(trio, 1)
        }
