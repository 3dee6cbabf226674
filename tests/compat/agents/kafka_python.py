"""The agent of kafka-python."""

import re
import sys
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.admin import ConfigResource
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata
from tests.compat.agents.loop import Driver, Json, Partition, Refusal, record, serve, unhex

WAIT_S = 60
CODECS = {"none": None}


def _json(message: Any) -> Json:
    return record(message.partition, message.offset, message.timestamp, message.key, message.value, message.headers)


class KafkaPython(Driver):
    """kafka-python, asked for everything it can do."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.consumer: Any = None
        self.open_admin: Any = None
        self.producers: dict[str, Any] = {}
        self.seat: Any = None  # in the group, as it was when it was asked to keep it

    def refusal(self, error: Exception) -> Refusal:
        code = getattr(error, "errno", None) if isinstance(error, KafkaError) else None
        return Refusal(code, repr(error))

    @property
    def admin(self) -> Any:
        if self.open_admin is None:
            self.open_admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        return self.open_admin

    def produce(self, topic: str, records: list[Json], codec: str, acks: int, options: Json) -> list[list[int]]:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            compression_type=CODECS.get(codec, codec),
            acks="all" if acks == -1 else acks,
            enable_idempotence=options.get("idempotent", False),
            linger_ms=50,
            **options.get("native", {}),
        )
        futures = [
            producer.send(
                topic,
                value=unhex(item["value"]),
                key=unhex(item["key"]),
                headers=[(name, unhex(value)) for name, value in item["headers"]],
                partition=item["partition"],
                timestamp_ms=item["timestamp"],
            )
            for item in records
        ]
        producer.flush(WAIT_S)
        placed = [future.get(WAIT_S) for future in futures]
        producer.close()
        return [[place.partition, -1 if place.offset is None else place.offset] for place in placed]

    def read(self, topic: str, partitions: list[int], isolation: str) -> list[Json]:
        places = [TopicPartition(topic, number) for number in partitions]
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level=isolation,
        )
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        found: list[Json] = []
        while any(consumer.position(place) < ends[place] for place in places):
            for batch in consumer.poll(timeout_ms=1000).values():
                found.extend(_json(message) for message in batch)
        consumer.close()
        return found

    def offsets(self, topic: str, partition: int, timestamp: int) -> Json:
        place = TopicPartition(topic, partition)
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap)
        at = consumer.offsets_for_times({place: timestamp})[place]
        answer = {
            "earliest": consumer.beginning_offsets([place])[place],
            "latest": consumer.end_offsets([place])[place],
            "at": None if at is None else at.offset,
        }
        consumer.close()
        return answer

    # --- transactions
    def open_producer(self, producer: str, transactional_id: str, timeout_ms: int) -> None:
        self.producers[producer] = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            delivery_timeout_ms=WAIT_S * 1000,
        )
        self.producers[producer].init_transactions()

    def begin(self, producer: str) -> None:
        self.producers[producer].begin_transaction()

    def send(self, producer: str, topic: str, records: list[Json]) -> None:
        futures = [
            self.producers[producer].send(
                topic, value=unhex(item["value"]), key=unhex(item["key"]), partition=item["partition"]
            )
            for item in records
        ]
        self.producers[producer].flush(WAIT_S)
        for future in futures:
            future.get(WAIT_S)

    def send_offsets(self, producer: str, group: str, offsets: list[list[Any]], as_member: bool) -> None:
        wanted = {TopicPartition(topic, number): OffsetAndMetadata(offset, "", -1) for topic, number, offset in offsets}
        self.producers[producer].send_offsets_to_transaction(wanted, self.seat if as_member else group)

    def keep_seat(self) -> None:
        self.seat = self.consumer.group_metadata()

    def commit_transaction(self, producer: str) -> None:
        self.producers[producer].commit_transaction()

    def abort_transaction(self, producer: str) -> None:
        self.producers[producer].abort_transaction()

    def close_producer(self, producer: str) -> None:
        self.producers.pop(producer).close(timeout=1)

    # --- a member of a group
    def join(self, group: str, topics: list[str], options: Json) -> None:
        native = {"group_instance_id": options["instance"]} if "instance" in options else {}
        self.consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset=options.get("reset", "earliest"),
            session_timeout_ms=options.get("session_ms", 6000),
            heartbeat_interval_ms=500,
            metadata_max_age_ms=1000,
            **native,
        )
        if "pattern" in options:
            self.consumer.subscribe(pattern=options["pattern"])
        else:
            self.consumer.subscribe(topics)
        self.joined = True

    def poll(self) -> tuple[list[Json], set[Partition]]:
        records = [_json(message) for batch in self.consumer.poll(timeout_ms=100).values() for message in batch]
        return records, {(place.topic, place.partition) for place in self.consumer.assignment()}

    def commit(self) -> None:
        self.consumer.commit()

    def committed(self, topic: str, partition: int) -> int | None:
        offset = self.consumer.committed(TopicPartition(topic, partition))
        return None if offset is None else int(offset)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self.consumer.seek(TopicPartition(topic, partition), offset)

    def leave(self) -> None:
        self.consumer.close()
        self.joined = False

    def commit_alone(self, group: str, topic: str, partition: int, offset: int) -> int:
        place = TopicPartition(topic, partition)
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, group_id=group, enable_auto_commit=False)
        consumer.assign([place])
        consumer.commit({place: OffsetAndMetadata(offset, "", -1)})
        found = consumer.committed(place)
        consumer.close()
        return int(found)

    # --- administration
    def create_topic(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        wanted = {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": config}}
        self.admin.create_topics(wanted)

    def delete_topic(self, topic: str) -> None:
        self.admin.delete_topics([topic])

    def create_partitions(self, topic: str, total: int) -> None:
        self.admin.create_partitions({topic: total})

    def list_topics(self) -> list[str]:
        return sorted(self.admin.list_topics())

    def describe_topic(self, topic: str) -> Json:
        (described,) = self.admin.describe_topics([topic])
        partitions = described["partitions"]
        return {"partitions": len(partitions), "leaders": [partition["leader_id"] for partition in partitions]}

    def describe_config(self, topic: str) -> dict[str, str]:
        resource = ConfigResource("topic", topic)
        found = self.admin.describe_configs([resource], config_filter="all")["topic"][topic]
        return {name: entry["value"] for name, entry in found.items()}

    def alter_config(self, topic: str, name: str, value: str | None) -> None:
        if value is None:
            self.admin.reset_configs([ConfigResource("topic", topic, [name])])
        else:
            _check(self.admin.alter_configs([ConfigResource("topic", topic, {name: value})])["topic"])

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        place = TopicPartition(topic, partition)
        return int(self.admin.delete_records({place: offset})[place]["low_watermark"])

    def list_groups(self) -> list[str]:
        return [group["group_id"] for group in self.admin.list_groups()]

    def describe_group(self, group: str) -> Json:
        found = self.admin.describe_groups([group])[group]
        return {"state": found["group_state"].upper(), "members": [[] for _ in found["members"]]}

    def delete_group(self, group: str) -> None:
        _check(self.admin.delete_groups([group]))

    def group_offsets(self, group: str) -> dict[str, int]:
        found = self.admin.list_group_offsets([group])[group]
        return {f"{place.topic}/{place.partition}": value.offset for place, value in found.items()}

    def set_group_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        wanted = {TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        self.admin.alter_group_offsets(group, wanted)

    def delete_group_offset(self, group: str, topic: str, partition: int) -> None:
        _check(self.admin.delete_group_offsets(group, [TopicPartition(topic, partition)]))

    def describe_cluster(self) -> Json:
        found = self.admin.describe_cluster()
        brokers = [[broker["broker_id"], broker["host"], broker["port"]] for broker in found["brokers"]]
        return {"brokers": brokers, "controller": found["controller_id"], "cluster_id": found["cluster_id"]}

    def log_dirs(self, topic: str) -> dict[str, int]:
        sizes = [
            partition["partition_size"]
            for broker in self.admin.describe_log_dirs()
            for folder in broker["log_dirs"]
            for found in folder["topics"]
            if found["name"] == topic
            for partition in found["partitions"]
        ]
        return {"partitions": len(sizes), "bytes": sum(sizes)}


def _check(answers: Any) -> None:
    """Raise what a call hands back instead: error classes, their names, or "[Error 40] ..."."""
    for answer in answers.values():
        name = answer if isinstance(answer, str) else answer.__name__
        if numbered := re.match(r"\[Error (\d+)\]", name):
            raise Refusal(int(numbered[1]), name)
        if name not in ("NoError", "OK"):
            raise Refusal(getattr(errors, name).errno, name)


if __name__ == "__main__":
    serve(KafkaPython(sys.argv[1]))
