"""The agent of confluent-kafka (librdkafka)."""

import sys
import uuid
from typing import Any

import confluent_kafka.admin
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from tests.compat.agents.loop import Driver, Json, Partition, Refusal, record, serve, unhex

WAIT_S = 60
kinds: Any = confluent_kafka.admin  # its names are not typed as exported


def _json(message: Any) -> Json:
    return record(
        message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value(), message.headers()
    )


class Confluent(Driver):
    """confluent-kafka, asked for everything it can do."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.consumer: Any = None
        self.group = ""
        self.closed_admin: Any = None
        self.producers: dict[str, Any] = {}
        self.seat: Any = None  # in the group, as it was when it was asked to keep it

    def refusal(self, error: Exception) -> Refusal:
        inner = error.args[0] if error.args else None
        if isinstance(inner, KafkaError):
            return Refusal(inner.code(), str(inner))
        return Refusal(None, repr(error))

    @property
    def admin(self) -> Any:
        if self.closed_admin is None:
            self.closed_admin = kinds.AdminClient({"bootstrap.servers": self.bootstrap})
        return self.closed_admin

    def produce(self, topic: str, records: list[Json], codec: str, acks: int, options: Json) -> list[list[int]]:
        native = {"linger.ms": 50, **options.get("native", {})}
        producer: Any = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": options.get("idempotent", False),
                **native,
            }
        )
        placed: dict[int, list[int]] = {}
        failed: list[KafkaError] = []
        for number, item in enumerate(records):

            def done(error: KafkaError | None, message: Any, number: int = number) -> None:
                if error is not None:
                    failed.append(error)
                else:
                    offset = message.offset()
                    placed[number] = [message.partition(), -1 if offset is None or offset < 0 else offset]

            place = {} if item["partition"] is None else {"partition": item["partition"]}
            stamp = {} if item["timestamp"] is None else {"timestamp": item["timestamp"]}
            headers = [(name, unhex(value)) for name, value in item["headers"]]
            producer.produce(
                topic,
                value=unhex(item["value"]),
                key=unhex(item["key"]),
                headers=headers,
                on_delivery=done,
                **place,
                **stamp,
            )
            producer.poll(0)
        producer.flush(WAIT_S)
        if failed:
            raise Refusal(failed[0].code(), str(failed[0]))
        return [placed[number] for number in range(len(records))]

    def _reader(self, **native: Any) -> Any:
        return Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False, **native}
        )

    def read(self, topic: str, partitions: list[int], isolation: str) -> list[Json]:
        consumer = self._reader(**{"isolation.level": isolation, "enable.partition.eof": True, "fetch.wait.max.ms": 10})
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        found: list[Json] = []
        left = set(partitions)
        while left:
            for message in consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    found.append(_json(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise Refusal(error.code(), str(error))
        consumer.close()
        return found

    def offsets(self, topic: str, partition: int, timestamp: int) -> Json:
        consumer = self._reader()
        earliest, latest = consumer.get_watermark_offsets(TopicPartition(topic, partition), WAIT_S)
        at = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp)], WAIT_S)[0].offset
        consumer.close()
        largest = self.admin.list_offsets({TopicPartition(topic, partition): kinds.OffsetSpec.max_timestamp()})
        by_time = next(iter(largest.values())).result(WAIT_S).offset
        return {"earliest": earliest, "latest": latest, "at": at if at >= 0 else None, "largest": by_time}

    # --- transactions
    def open_producer(self, producer: str, transactional_id: str, timeout_ms: int) -> None:
        self.producers[producer] = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
            }
        )
        self.producers[producer].init_transactions(WAIT_S)

    def begin(self, producer: str) -> None:
        self.producers[producer].begin_transaction()

    def send(self, producer: str, topic: str, records: list[Json]) -> None:
        failed: list[KafkaError] = []
        for item in records:
            self.producers[producer].produce(
                topic,
                value=unhex(item["value"]),
                key=unhex(item["key"]),
                partition=item["partition"],
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            self.producers[producer].poll(0)
        self.producers[producer].flush(WAIT_S)
        if failed:
            raise Refusal(failed[0].code(), str(failed[0]))

    def send_offsets(self, producer: str, group: str, offsets: list[list[Any]], as_member: bool) -> None:
        seat = self.seat if as_member else self._reader(**{"group.id": group}).consumer_group_metadata()
        places = [TopicPartition(*place) for place in offsets]
        self.producers[producer].send_offsets_to_transaction(places, seat, WAIT_S)

    def keep_seat(self) -> None:
        self.seat = self.consumer.consumer_group_metadata()

    def commit_transaction(self, producer: str) -> None:
        self.producers[producer].commit_transaction(WAIT_S)

    def abort_transaction(self, producer: str) -> None:
        self.producers[producer].abort_transaction(WAIT_S)

    def close_producer(self, producer: str) -> None:
        del self.producers[producer]

    # --- a member of a group
    def join(self, group: str, topics: list[str], options: Json) -> None:
        protocol = options.get("protocol", "classic")
        native = {"group.protocol": protocol}
        if protocol == "classic":
            native |= {
                "session.timeout.ms": options.get("session_ms", 6000),
                "heartbeat.interval.ms": 500,
                "partition.assignment.strategy": options.get("strategy", "range"),
            }
        if "instance" in options:
            native["group.instance.id"] = options["instance"]
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": options.get("reset", "earliest"),
            "topic.metadata.refresh.interval.ms": 1000,
        }
        self.consumer = Consumer(settings | native | options.get("native", {}))
        self.consumer.subscribe([options["pattern"]] if "pattern" in options else topics)
        self.joined = True

    def poll(self) -> tuple[list[Json], set[Partition]]:
        messages = self.consumer.consume(200, 0.1)
        records = [_json(message) for message in messages if message.error() is None]
        return records, {(place.topic, place.partition) for place in self.consumer.assignment()}

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def committed(self, topic: str, partition: int) -> int | None:
        offset = self.consumer.committed([TopicPartition(topic, partition)], WAIT_S)[0].offset
        return None if offset < 0 else int(offset)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self.consumer.seek(TopicPartition(topic, partition, offset))

    def leave(self) -> None:
        self.consumer.close()
        self.joined = False

    def commit_alone(self, group: str, topic: str, partition: int, offset: int) -> int:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, partition)])
        consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
        found = consumer.committed([TopicPartition(topic, partition)], WAIT_S)[0].offset
        consumer.close()
        return int(found)

    # --- administration
    def create_topic(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        self._one(self.admin.create_topics([kinds.NewTopic(topic, partitions, 1, config=config)]))

    def delete_topic(self, topic: str) -> None:
        self._one(self.admin.delete_topics([topic]))

    def create_partitions(self, topic: str, total: int) -> None:
        self._one(self.admin.create_partitions([kinds.NewPartitions(topic, total)]))

    def list_topics(self) -> list[str]:
        return sorted(self.admin.list_topics(timeout=WAIT_S).topics)

    def describe_topic(self, topic: str) -> Json:
        described = self._one(self.admin.describe_topics(TopicCollection([topic])))
        leaders = [partition.leader.id for partition in described.partitions]
        return {"partitions": len(described.partitions), "leaders": leaders, "id": str(described.topic_id)}

    def describe_config(self, topic: str) -> dict[str, str]:
        found = self._one(self.admin.describe_configs([kinds.ConfigResource(kinds.ResourceType.TOPIC, topic)]))
        return {name: entry.value for name, entry in found.items()}

    def alter_config(self, topic: str, name: str, value: str | None) -> None:
        operation = kinds.AlterConfigOpType.SET if value is not None else kinds.AlterConfigOpType.DELETE
        entry = kinds.ConfigEntry(name, value, incremental_operation=operation)
        resource = kinds.ConfigResource(kinds.ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._one(self.admin.incremental_alter_configs([resource]))

    def replace_config(self, topic: str, config: dict[str, str]) -> None:
        self._one(self.admin.alter_configs([kinds.ConfigResource(kinds.ResourceType.TOPIC, topic, set_config=config)]))

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        return int(self._one(self.admin.delete_records([TopicPartition(topic, partition, offset)])).low_watermark)

    def list_groups(self) -> list[str]:
        return [group.group_id for group in self.admin.list_consumer_groups().result(WAIT_S).valid]

    def describe_group(self, group: str) -> Json:
        found = self._one(self.admin.describe_consumer_groups([group]))
        members = [
            [
                [place.topic, place.partition]
                for place in (member.assignment.topic_partitions if member.assignment else [])
            ]
            for member in found.members
        ]
        return {"state": found.state.name, "members": members}

    def delete_group(self, group: str) -> None:
        self._one(self.admin.delete_consumer_groups([group]))

    def group_offsets(self, group: str) -> dict[str, int]:
        found = self._one(self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
        return {f"{place.topic}/{place.partition}": place.offset for place in found.topic_partitions}

    def set_group_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition, offset)])
        self._one(self.admin.alter_consumer_group_offsets([wanted]))

    def describe_cluster(self) -> Json:
        found = self.admin.describe_cluster().result(WAIT_S)
        brokers = [[node.id, node.host, node.port] for node in found.nodes]
        return {"brokers": brokers, "controller": found.controller.id, "cluster_id": found.cluster_id}

    @staticmethod
    def _one(futures: Any) -> Any:
        (future,) = futures.values()
        return future.result(WAIT_S)


if __name__ == "__main__":
    try:
        serve(Confluent(sys.argv[1]))
    except KafkaException as error:
        sys.exit(str(error))
