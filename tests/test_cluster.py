"""Several brokers as processes, with a real ZooKeeper: who leads what, who is gone, who must end."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.client.talk import talk

from runnel.client.cluster import Cluster as Client
from runnel.testing import zookeeper as real
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

LIMIT_S = 60.0
SESSION_MS = 2_000
PATIENT_MS = 30_000  # a session so long that what is seen sooner has another reason than its end


class Cluster:
    """Brokers 1, 2, ... below one path of a ZooKeeper."""

    def __init__(
        self, zookeeper: real.ZooKeeper, folder: Path, count: int, stack: ExitStack, *, session_ms: int = SESSION_MS
    ) -> None:
        store = f"zookeeper://{zookeeper.address}{folder}"
        environment = {"RUNNEL_SESSION_MS": str(session_ms), "RUNNEL_STORE": store}
        self.brokers: dict[int, BrokerProcess] = {}
        self._admins: dict[int, AdminClient] = {}
        for number in range(1, count + 1):
            broker = BrokerProcess(folder / str(number), "--broker-id", str(number), environment=environment)
            self.brokers[number] = stack.enter_context(broker)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.kafka for broker in self.brokers.values())

    def admin(self, number: int) -> AdminClient:
        """A client that knows one broker only."""
        if number not in self._admins:
            self._admins[number] = AdminClient({"bootstrap.servers": self.brokers[number].kafka, "log_level": 0})
        return self._admins[number]

    def alive(self, number: int) -> set[int]:
        """Who is alive, in the eyes of one broker."""

        async def ask(client: Client) -> set[int]:
            answer = await client.ask_any(Api.DESCRIBE_CLUSTER, m.DescribeClusterRequest(), m.DescribeClusterResponse)
            return {broker.broker_id for broker in answer.brokers}

        return talk(self.brokers[number].kafka, ask)


@pytest.fixture
def cluster(zookeeper: real.ZooKeeper, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(zookeeper, tmp_path, 2, stack)


def controller_of(admin: AdminClient) -> int | None:
    """Whom a broker calls controller; None if nobody answers soon: librdkafka may wait for one that is dead by now."""
    try:
        found: int = admin.list_topics(timeout=5).controller_id
    except KafkaException as error:
        if error.args[0].code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
            return None
        raise
    return found


def eventually(holds: Callable[[], bool]) -> float:
    """Wait for it; returns how long that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < LIMIT_S
        time.sleep(0.02)
    return time.monotonic() - began


def leaders(admin: AdminClient, topic: str) -> dict[int, int]:
    return {n: part.leader for n, part in admin.list_topics(topic, LIMIT_S).topics[topic].partitions.items()}


def send(cluster: Cluster, topic: str, partition: int, value: bytes) -> None:
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0, "linger.ms": 0})
    producer.produce(topic, value, partition=partition, on_delivery=delivered)
    assert producer.flush(LIMIT_S) == 0
    assert failed == []


def read(cluster: Cluster, topic: str, partition: int, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[bytes] = []
    while len(found) < count:
        for message in consumer.consume(count - len(found), 0.5):
            assert message.error() is None
            found.append(message.value() or b"")
    consumer.close()
    return found


def test_each_broker_serves_what_it_leads_also_after_a_crash(cluster: Cluster) -> None:
    cluster.admin(2).create_topics([NewTopic("t", 4, 1)])["t"].result(LIMIT_S)
    for number in cluster.brokers:
        eventually(lambda number=number: "t" in cluster.admin(number).list_topics(timeout=LIMIT_S).topics)  # type: ignore[misc]
        metadata = cluster.admin(number).list_topics(timeout=LIMIT_S)
        assert set(metadata.brokers) == {1, 2}
        assert metadata.controller_id == 1
    led = leaders(cluster.admin(1), "t")
    assert sorted(led.values()) == [1, 1, 2, 2]
    for partition in led:
        send(cluster, "t", partition, b"%d" % partition)
        assert read(cluster, "t", partition, 1) == [b"%d" % partition]
    cluster.brokers[1].kill()
    eventually(lambda: controller_of(cluster.admin(2)) == 2)
    for partition in (partition for partition, leader in led.items() if leader == 2):
        send(cluster, "t", partition, b"more")
    cluster.brokers[1].start()
    for partition in led:
        send(cluster, "t", partition, b"last")
        expected = [b"%d" % partition, b"more", b"last"] if led[partition] == 2 else [b"%d" % partition, b"last"]
        assert read(cluster, "t", partition, len(expected)) == expected


def test_groups_and_automatic_topics_work_on_any_broker(cluster: Cluster) -> None:
    config = {"bootstrap.servers": cluster.brokers[2].kafka, "log_level": 0}
    producer = Producer(config)
    producer.produce("auto", b"hello")
    assert producer.flush(LIMIT_S) == 0
    consumer = Consumer({**config, "group.id": "some", "auto.offset.reset": "earliest"})
    consumer.subscribe(["auto"])
    found: list[bytes | None] = []
    while not found:
        found += [message.value() for message in consumer.consume(1, 0.5)]
    consumer.commit(asynchronous=False)
    consumer.close()
    assert found == [b"hello"]
    cluster.admin(2).delete_topics(["auto"])["auto"].result(LIMIT_S)
    eventually(lambda: all("auto" not in cluster.admin(n).list_topics(timeout=LIMIT_S).topics for n in (1, 2)))


def test_a_broker_that_hung_longer_than_its_session_begins_a_new_life(cluster: Cluster) -> None:
    cluster.admin(1).create_topics([NewTopic("t", 2, 1)])["t"].result(LIMIT_S)
    sleeper = cluster.brokers[1].process
    sleeper.send_signal(signal.SIGSTOP)
    eventually(lambda: set(cluster.admin(2).list_topics(timeout=LIMIT_S).brokers) == {2})
    sleeper.send_signal(signal.SIGCONT)
    eventually(lambda: set(cluster.admin(2).list_topics(timeout=LIMIT_S).brokers) == {1, 2})
    assert "begin a new life" in cluster.brokers[1].errors()
    for partition in (0, 1):
        send(cluster, "t", partition, b"after")
        assert read(cluster, "t", partition, 1) == [b"after"]


def test_brokers_outlive_a_zookeeper_that_is_away_for_longer_than_a_session(tmp_path: Path) -> None:
    with ExitStack() as stack:
        zookeeper = stack.enter_context(real.ZooKeeper(tmp_path / "zookeeper"))
        cluster = Cluster(zookeeper, tmp_path, 2, stack)
        cluster.admin(1).create_topics([NewTopic("t", 2, 1)])["t"].result(LIMIT_S)
        for partition in (0, 1):
            send(cluster, "t", partition, b"before")
        zookeeper.kill()
        eventually(lambda: all("new life" in broker.errors() for broker in cluster.brokers.values()))
        zookeeper.start()
        for partition in (0, 1):
            send(cluster, "t", partition, b"after")
            assert read(cluster, "t", partition, 2) == [b"before", b"after"]


def test_an_orderly_end_is_seen_at_once(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = Cluster(zookeeper, tmp_path, 2, stack, session_ms=PATIENT_MS)
        eventually(lambda: cluster.alive(2) == {1, 2})
        assert cluster.brokers[1].stop() == 0
        admin = cluster.admin(2)
        took_s = eventually(lambda: cluster.alive(2) == set(admin.list_topics(timeout=LIMIT_S).brokers) == {2})
        assert took_s < PATIENT_MS / 1000
