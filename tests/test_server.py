"""The whole broker as a process: crashes, full disks, orderly ends, clear refusals."""

import asyncio
import errno
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from runnel.broker.config import Address, BrokerConfig
from runnel.client.cluster import Cluster
from runnel.client.producer import Delivery
from runnel.client.producer import Producer as OwnProducer
from runnel.cluster.embedded import Embedded
from runnel.model.errors import Fatal, RunnelError
from runnel.server import Machine, Server
from runnel.shell.clock import SystemClock
from runnel.shell.disk import RealDisk, RealFile
from runnel.shell.rng import SystemRng
from runnel.testing.process import BrokerProcess

LIMIT_S = 60.0
COMMAND = [sys.executable, "-m", "runnel.cli.main"]


def create(broker: BrokerProcess, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    spec = NewTopic(topic, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
    admin.create_topics([spec])[topic].result(LIMIT_S)


class Sender:
    """A producer that remembers what was acknowledged."""

    def __init__(self, broker: BrokerProcess, **config: object) -> None:
        self.acked: list[tuple[int, bytes]] = []
        self.errors: list[KafkaError] = []
        self.producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 1, "log_level": 0, **config})

    def send(self, topic: str, value: bytes) -> None:
        self.producer.produce(topic, value, partition=0, on_delivery=self._delivered)
        self.producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert isinstance(value, bytes)
            self.acked.append((offset, value))

    def wait_for(self, count: int) -> None:
        while len(self.acked) < count:
            self.producer.poll(0.1)


def read_all(broker: BrokerProcess, topic: str, count: int) -> list[tuple[int, bytes]]:
    """The first so many messages of partition 0, with their offsets."""
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": str(uuid4()), "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[int, bytes]] = []
    try:
        while len(found) < count:
            for message in consumer.consume(count - len(found), 0.5):
                assert message.error() is None
                offset, value = message.offset(), message.value()
                assert offset is not None
                assert value is not None
                found.append((offset, value))
    finally:
        consumer.close()
    return found


def test_what_was_acknowledged_survives_sigkill_again_and_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        create(broker, "t")
        sender = Sender(broker, **{"enable.idempotence": True})
        for life in range(4):
            for number in range(500):
                sender.send("t", b"%d-%d" % (life, number))
            sender.wait_for(500 * life + 100)
            broker.kill()
            broker.start()
        assert sender.producer.flush(LIMIT_S) == 0
        assert sender.errors == []
        found = read_all(broker, "t", 2000)
        assert sorted(sender.acked) == found
        # Idempotent: each once, in the order of sending, although the broker died in between.
        assert [value for _, value in found] == [b"%d-%d" % (life, n) for life in range(4) for n in range(500)]


def test_committed_offsets_survive_sigkill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        create(broker, "t", 3)
        config = {"bootstrap.servers": broker.kafka, "group.id": "g", "log_level": 0}
        consumer = Consumer(config)
        consumer.commit(offsets=[TopicPartition("t", n, 10 + n) for n in range(3)], asynchronous=False)
        consumer.close()
        broker.kill()
        broker.start()
        consumer = Consumer(config)
        found = consumer.committed([TopicPartition("t", n) for n in range(3)], LIMIT_S)
        consumer.close()
        assert [partition.offset for partition in found] == [10, 11, 12]


def test_sigterm_ends_the_broker_cleanly_and_nothing_needs_recovery(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        create(broker, "t")
        sender = Sender(broker)
        for number in range(100):
            sender.send("t", b"%d" % number)
        assert sender.producer.flush(LIMIT_S) == 0
        assert broker.stop() == 0
        broker.start()
        assert [value for _, value in read_all(broker, "t", 100)] == [b"%d" % number for number in range(100)]
        assert "ERROR" not in broker.errors()


def test_a_disk_that_is_full_fails_producers_clearly_and_heals(tmp_path: Path) -> None:
    """A limit on file sizes stands in for a full disk: both make writes short, then fail."""
    with BrokerProcess(tmp_path / "data") as broker:
        create(broker, "t")
        create(broker, "other")
        sender = Sender(broker, **{"retries": 0, "linger.ms": 0, "delivery.timeout.ms": 30_000})
        sender.send("t", b"x" * 50_000)
        assert sender.producer.flush(LIMIT_S) == 0
        unlimited = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (80_000, unlimited[1]))
        sender.send("t", b"y" * 50_000)
        assert sender.producer.flush(LIMIT_S) == 0
        assert [error.name() for error in sender.errors] == ["KAFKA_STORAGE_ERROR"]
        # The rest of the broker serves on, and what was acknowledged is there.
        sender.send("other", b"z")
        assert sender.producer.flush(LIMIT_S) == 0
        assert [value for _, value in read_all(broker, "t", 1)] == [b"x" * 50_000]
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, unlimited)
        sender.send("t", b"again")
        assert sender.producer.flush(LIMIT_S) == 0
        assert len(sender.errors) == 1
        assert [value for _, value in read_all(broker, "t", 2)] == [b"x" * 50_000, b"again"]


def serve(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [*COMMAND, "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_a_second_broker_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        refused = serve("--data", str(tmp_path / "data"), "--kafka", "127.0.0.1:0")
        assert refused.returncode == 1
        assert str(broker.pid) in refused.stderr
        assert "Traceback" not in refused.stderr


def test_an_address_in_use_is_told_clearly(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = serve("--data", str(tmp_path / "data"), "--kafka", f"127.0.0.1:{port}")
    assert refused.returncode == 1
    assert f"kafka can't be '127.0.0.1:{port}': Address already in use;" in refused.stderr
    assert "--kafka HOST:PORT" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_one_address_for_both_doors_is_refused(tmp_path: Path) -> None:
    """Both sockets can be bound to it, but only one can listen."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    refused = serve("--data", str(tmp_path / "data"), "--kafka", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{port}")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"http can't be '127.0.0.1:{port}'" in refused.stderr
    assert "--http HOST:PORT" in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_that_waits_for_zookeeper_says_so_and_can_be_stopped(tmp_path: Path, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [*COMMAND, "serve", "--data", str(tmp_path / "data"), "--kafka", "127.0.0.1:0"]
        with subprocess.Popen([*command, "--store", f"zookeeper://{store}"], stderr=subprocess.PIPE) as running:
            assert running.stderr is not None
            assert f"waiting for ZooKeeper at {store}" in running.stderr.readline().decode()
            running.send_signal(number)
            assert (running.stderr.read(), running.wait(LIMIT_S)) == (b"", 0)


@pytest.mark.parametrize("options", [("--kafka", "nonsense"), ("--broker-id", "-3")])
def test_bad_settings_end_with_one_sentence(tmp_path: Path, options: tuple[str, str]) -> None:
    refused = serve("--data", str(tmp_path / "data"), *options)
    assert refused.returncode == 2
    assert f"can't be {options[1]!r}; allowed is" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_a_data_directory_that_is_a_file_is_told_clearly(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    refused = serve("--data", str(tmp_path / "data"), "--kafka", "127.0.0.1:0")
    assert refused.returncode == 1
    assert f"the data directory {tmp_path}/data can't be used: it is no folder" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_mistyped_variable_is_told(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", environment={"RUNNEL_DEFUALT_PARTITIONS": "4"}) as broker:
        assert "RUNNEL_DEFUALT_PARTITIONS is no setting, and is ignored" in broker.errors()
        assert "did you mean RUNNEL_DEFAULT_PARTITIONS?" in broker.errors()


def test_a_damaged_batch_is_reported_and_the_rest_is_served(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        create(broker, "t")
        sender = Sender(broker, **{"linger.ms": 0})
        for number in range(3):
            sender.send("t", b"%d" % number * 100)
            assert sender.producer.flush(LIMIT_S) == 0
        assert broker.stop() == 0
        [log] = [path for path in (tmp_path / "data").rglob("*.log") if b"1" * 100 in path.read_bytes()]
        data = bytearray(log.read_bytes())
        data[data.index(b"1" * 100) + 50] ^= 1
        log.write_bytes(data)
        broker.start()
        assert [value for _, value in read_all(broker, "t", 1)] == [b"0" * 100]
        consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "x", "check.crcs": True, "log_level": 0})
        consumer.assign([TopicPartition("t", 0, 2)])
        message = consumer.poll(LIMIT_S)
        assert message is not None
        assert message.value() == b"2" * 100
        consumer.close()


class DiskThatCannotSync(RealDisk):
    """Once told to, every sync of a partition's log fails, as on a dying device."""

    broken = False

    def open(self, path: str, *, create: bool = False) -> RealFile:
        disk = self

        class Opened(RealFile):
            def sync(self) -> None:
                if disk.broken and path.endswith(".log"):
                    raise OSError(errno.EIO, "the device failed", path)
                super().sync()

        plain = super().open(path, create=create)
        return Opened(path, plain._fd, plain._scratch)


def test_a_failed_sync_ends_the_broker_and_acknowledges_nothing(tmp_path: Path) -> None:
    """After a failed fsync the kernel may have dropped the pages: whatever is said from then on could be a lie."""

    async def main() -> None:
        config = BrokerConfig(data=str(tmp_path), kafka=Address("127.0.0.1", 0), http=None)
        disk = DiskThatCannotSync(str(tmp_path))
        ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        machine = Machine(disk, SystemClock(), SystemRng(), lambda: Embedded.open(disk, config.data))
        server = Server(config, machine, ended.set_result)
        await server.start()
        cluster = Cluster([str(server.kafka)], clock=SystemClock())
        producer = OwnProducer(cluster)
        await (await producer.send("t", b"before"))
        disk.broken = True
        delivery = await producer.send("t", b"after")
        error = await asyncio.wait_for(ended, LIMIT_S)
        assert isinstance(error, Fatal)
        assert "sync" in str(error)
        assert not (delivery.done() and _succeeded(delivery))
        await producer.close(flush=False)
        await cluster.close()
        disk.broken = False
        await server.stop()
        disk.close()

    asyncio.run(main())


def _succeeded(delivery: Delivery) -> bool:
    try:
        delivery.result()
    except RunnelError:
        return False
    return True
