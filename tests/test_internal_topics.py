"""Only coordinators write to their topics and change them: every door refuses clients, and nothing is appended."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from tests.client.talk import talk
from tests.doors.http.api import Api as Http

from runnel.broker.internal import GROUPS, INTERNAL, QUEUES, REQUESTS, SCHEDULE, SINKS, TRANSACTIONS
from runnel.client.admin import Admin, NewTopic
from runnel.client.calls import call
from runnel.client.cluster import GROUP, TRANSACTION, Cluster
from runnel.client.errors import check
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import LATEST, list_offsets
from runnel.client.outcome import error_of_failure
from runnel.model.calls import MESSAGE_SEND, QUEUE_ALTER, QUEUE_CREATE, AlterQueue, CreateQueue, Outgoing, SendTo
from runnel.model.errors import InvalidConfig, InvalidTopicName
from runnel.model.internal_calls import MAKE_FOR_QUEUE, MAKE_INTERNAL, MakeForQueue, MakeInternal
from runnel.model.once import APPEND_ONCE, AppendOnce, OnceMessage
from runnel.model.reading import READ_PARTITION, ReadPartition
from runnel.model.schedule import SCHEDULE_PARK, Park, Parked
from runnel.record import records
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

MINUTE_MS = 60_000
LATER_MS = 4_000_000_000_000  # the year 2096
GROUP_RESOURCE = 32


class Target(NamedTuple):
    """An internal topic, as a client gets to know it, and the ways to the broker."""

    name: str
    id: UUID
    cluster: Cluster
    http: Http

    def post(self, path: str, body: Any, **headers: str) -> None:
        answer = self.http.ask("POST", path, body, {name.replace("_", "-"): text for name, text in headers.items()})
        assert answer.code == "invalid-topic-name", answer
        raise InvalidTopicName(answer.json["detail"])


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that has all internal topics, and a queue."""

    async def make(cluster: Cluster) -> None:
        for name in (QUEUES, SCHEDULE, REQUESTS, SINKS):
            await call(cluster, MAKE_INTERNAL, MakeInternal(name))
        await cluster.coordinator("g", GROUP)
        await cluster.coordinator("tx", TRANSACTION)
        await call(cluster, QUEUE_CREATE, CreateQueue("jobs"))

    with BrokerProcess(tmp_path_factory.mktemp("own") / "data") as broker:
        talk(broker.kafka, make)
        yield broker


# --- writing
def batch() -> memoryview:
    return memoryview(bytearray(records.encode([records.Record(0, 1, b"k", b"v", ())])))


async def produce(target: Target, **named: Any) -> None:
    topic = m.ProduceRequest.TopicProduceData(
        partition_data=[m.ProduceRequest.PartitionProduceData(index=0, records=batch())], **named
    )
    request = m.ProduceRequest(acks=-1, timeout_ms=MINUTE_MS, topic_data=[topic])
    node = await target.cluster.controller()
    connection = await node.connection()
    answer = await connection.ask(
        Api.PRODUCE, request, m.ProduceResponse, timeout_ms=MINUTE_MS, version=12 if "name" in named else 13
    )
    told = answer.responses[0].partition_responses[0]
    check(told.error_code, action="produce", broker="1", message=told.error_message)


async def write_marker(target: Target) -> None:
    R = m.WriteTxnMarkersRequest
    topic = R.WritableTxnMarkerTopic(name=target.name, partition_indexes=[0])
    marker = R.WritableTxnMarker(producer_id=7, producer_epoch=0, transaction_result=True, topics=[topic])
    node = await target.cluster.controller()
    answer = await node.ask(Api.WRITE_TXN_MARKERS, R(markers=[marker]), m.WriteTxnMarkersResponse)
    told = answer.markers[0].topics[0].partitions[0]
    if target.name == GROUPS:  # offsets of groups take part in transactions, and of this one there are none
        raise InvalidTopicName("nothing was written")
    check(told.error_code, action="write a marker", broker="1")


async def append_once(target: Target) -> None:
    message = OnceMessage("a", b"k", b"v", [], 1, accepted=True)
    answer = await call(target.cluster, APPEND_ONCE, AppendOnce(target.id, 0, [message], MINUTE_MS))
    error = error_of_failure(answer.failures[0])
    assert error is not None
    raise error


async def park(target: Target) -> None:
    await call(target.cluster, SCHEDULE_PARK, Park(target.id, 0, [Parked("a", LATER_MS, b"k", b"v", [])]))


async def send(target: Target, **more: Any) -> None:
    answer = await call(target.cluster, MESSAGE_SEND, SendTo(target.name, [Outgoing(b"v", b"k", **more)]))
    error = error_of_failure(answer.failures[0])
    assert error is not None
    raise error


async def http_send(target: Target, body: dict[str, Any], **headers: str) -> None:
    target.post(f"/v1/topics/{target.name}/messages", {"value": 1, "key": "k", **body}, **headers)


# --- reading
async def read(target: Target) -> None:
    await call(target.cluster, READ_PARTITION, ReadPartition(target.id, 0))


async def http_read(target: Target) -> None:
    answer = target.http.get(f"/v1/topics/{target.name}/partitions/0/messages")
    assert answer.code == "invalid-topic-name"
    raise InvalidTopicName(answer.json["detail"])


async def follow(target: Target) -> None:
    answer = target.http.get(f"/v1/topics/{target.name}/events")
    assert answer.code == "invalid-topic-name"
    raise InvalidTopicName(answer.json["detail"])


async def join(target: Target) -> None:
    target.post("/v1/groups/g/members", {"topics": [target.name]})


async def make_view(target: Target) -> None:
    view = NewTopic("seen", config={"view.of": target.name, "view.filter": "TRUE"})
    await Admin(target.cluster).create_topics([view])


# --- changing
async def create(target: Target) -> None:
    await Admin(target.cluster).create_topics([NewTopic(target.name)])


async def http_create(target: Target) -> None:
    target.post("/v1/topics", {"name": target.name})


async def make_for_queue(target: Target) -> None:
    await call(target.cluster, MAKE_FOR_QUEUE, MakeForQueue(target.name, 1))


async def delete(target: Target) -> None:
    await Admin(target.cluster).delete_topics([target.name])


async def delete_by_id(target: Target) -> None:
    topic = m.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=target.id)
    node = await target.cluster.controller()
    request = m.DeleteTopicsRequest(topics=[topic], timeout_ms=MINUTE_MS)
    answer = await node.ask(Api.DELETE_TOPICS, request, m.DeleteTopicsResponse)
    [told] = answer.responses
    check(told.error_code, action="delete", broker="1", message=told.error_message)


async def grow(target: Target) -> None:
    await Admin(target.cluster).create_partitions(target.name, 100)


async def delete_records(target: Target) -> None:
    await Admin(target.cluster).delete_records({TopicPartition(target.name, 0): 0})


async def add_to_transaction(target: Target) -> None:
    R = m.AddPartitionsToTxnRequest
    topic = R.AddPartitionsToTxnTopic(name=target.name, partitions=[0])
    request = R(
        v3_and_below_transactional_id="tx", v3_and_below_producer_id=1, v3_and_below_producer_epoch=0,
        v3_and_below_topics=[topic],
    )  # fmt: skip
    node = await target.cluster.coordinator("tx", TRANSACTION)
    connection = await node.connection()
    answer = await connection.ask(
        Api.ADD_PARTITIONS_TO_TXN, request, m.AddPartitionsToTxnResponse, timeout_ms=MINUTE_MS, version=3
    )
    told = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
    if target.name == GROUPS:  # where offsets of groups take part
        raise InvalidTopicName("its coordinator sees to it")
    check(told.partition_error_code, action="add to a transaction", broker="1")


# --- queues
async def deliver(target: Target) -> None:
    await call(target.cluster, QUEUE_CREATE, CreateQueue("q", {"topic": target.name}))


async def retry_to(target: Target) -> None:
    await call(target.cluster, QUEUE_ALTER, AlterQueue("jobs", {"retry.topic": target.name}))


async def bury_in(target: Target) -> None:
    R = m.IncrementalAlterConfigsRequest
    name, _, queue = target.name.partition("__")[2].partition("_")
    pattern = target.name if queue else "__{queue}"  # the name may come out of the queue's
    change = R.AlterableConfig(name="dead.letter.topic", config_operation=0, value=pattern)
    resource = R.AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=name, configs=[change])
    node = await target.cluster.controller()
    answer = await node.ask(Api.INCREMENTAL_ALTER_CONFIGS, R(resources=[resource]), m.IncrementalAlterConfigsResponse)
    told = answer.responses[0]
    check(told.error_code, action="alter a group", broker="1", message=told.error_message)


PATHS: dict[str, Callable[[Target], Awaitable[None]]] = {
    "produce by name": lambda target: produce(target, name=target.name),
    "produce by id": lambda target: produce(target, topic_id=target.id),
    "a marker": write_marker,
    "a transaction": add_to_transaction,
    "append.once": append_once,
    "schedule.park": park,
    "message.send": send,
    "message.send, named": lambda target: send(target, message_id="a"),
    "message.send, delayed": lambda target: send(target, deliver_at_ms=LATER_MS),
    "HTTP": lambda target: http_send(target, {}),
    "HTTP, named": lambda target: http_send(target, {"message_id": "a"}),
    "HTTP, delayed": lambda target: http_send(target, {"delay_ms": 10}),
    "HTTP, with an idempotency key": lambda target: http_send(target, {}, idempotency_key="a"),
    "partition.read": read,
    "HTTP reading": http_read,
    "events": follow,
    "a member of a group over HTTP": join,
    "a view": make_view,
    "create": create,
    "create over HTTP": http_create,
    "topic.make-for-queue": make_for_queue,
    "delete": delete,
    "delete by id": delete_by_id,
    "more partitions": grow,
    "delete records": delete_records,
    "a queue's topic": deliver,
    "a queue's retries": retry_to,
    "a group's dead letters": bury_in,
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", sorted(INTERNAL))
def test_no_door_lets_clients_use_an_internal_topic(own: BrokerProcess, name: str, path: str) -> None:
    async def work(cluster: Cluster) -> None:
        topic = await cluster.topic(name)
        places = {TopicPartition(name, number): LATEST for number in topic.partitions}
        before = await list_offsets(cluster, places)
        with pytest.raises(InvalidTopicName):
            await PATHS[path](Target(name, topic.id, cluster, Http(own.http)))
        assert await list_offsets(cluster, places) == before

    talk(own.kafka, work)


@pytest.mark.parametrize("path", ["create", "create over HTTP", "topic.make-for-queue"])
@pytest.mark.parametrize("name", [GROUPS, TRANSACTIONS, QUEUES])
def test_no_client_makes_a_topic_of_an_internal_name(broker: BrokerProcess, name: str, path: str) -> None:
    """Before a coordinator has made it, with settings that would lose its state."""

    async def work(cluster: Cluster) -> None:
        with pytest.raises(InvalidTopicName):
            await PATHS[path](Target(name, UUID(int=0), cluster, Http(broker.http)))

    talk(broker.kafka, work)


# --- settings
async def alter(target: Target, name: str, value: str | None) -> None:
    await Admin(target.cluster).alter_config(
        target.name, set_={} if value is None else {name: value}, reset=[name] if value is None else []
    )


async def alter_all(target: Target, name: str, value: str | None) -> None:
    """With AlterConfigs, whose settings are all that there are afterwards."""
    R = m.AlterConfigsRequest
    known = await Admin(target.cluster).configs([target.name])
    now = {entry.name: entry.value for entry in known[target.name] if entry.source == "topic"}
    asked = {key: text for key, text in {**now, name: value}.items() if text is not None}
    configs = [R.AlterableConfig(name=key, value=text) for key, text in asked.items()]
    node = await target.cluster.controller()
    request = R(resources=[R.AlterConfigsResource(resource_type=2, resource_name=target.name, configs=configs)])
    told = (await node.ask(Api.ALTER_CONFIGS, request, m.AlterConfigsResponse)).responses[0]
    check(told.error_code, action="alter", broker="1", message=told.error_message)


async def alter_over_http(target: Target, name: str, value: str | None) -> None:
    answer = target.http.ask("PATCH", f"/v1/topics/{target.name}", {"settings": {name: value}})
    if answer.status >= 300:
        assert answer.code == "invalid-config"
        raise InvalidConfig(answer.json["detail"])


DOORS = {"IncrementalAlterConfigs": alter, "AlterConfigs": alter_all, "HTTP": alter_over_http}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", sorted(INTERNAL))
def test_no_door_lets_clients_alter_what_keeps_an_internal_topic(own: BrokerProcess, name: str, door: str) -> None:
    async def work(cluster: Cluster) -> None:
        target = Target(name, (await cluster.topic(name)).id, cluster, Http(own.http))
        before = await Admin(cluster).configs([name])
        for setting, value in {
            "retention.ms": "1", "retention.bytes": "1", "cleanup.policy": "delete" if name != REQUESTS else "compact",
            "flush.mode": "os", "unclean.leader.election.enable": "true", "delete.retention.ms": "0",
            "segment.bytes": "1048577", "min.insync.replicas": "2",
        }.items():  # fmt: skip
            with pytest.raises(InvalidConfig, match=r"internal|replicas"):
                await DOORS[door](target, setting, value)
        with pytest.raises(InvalidConfig, match="internal"):
            await DOORS[door](target, "cleanup.policy", None)
        assert await Admin(cluster).configs([name]) == before
        await DOORS[door](target, "min.cleanable.dirty.ratio", "0.3")
        await DOORS[door](target, "min.cleanable.dirty.ratio", None)
        assert await Admin(cluster).configs([name]) == before

    talk(own.kafka, work)
