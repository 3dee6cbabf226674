"""The agent of aiokafka. Its loop lives in a thread of its own, so that heartbeats go on between requests."""

import asyncio
import sys
import threading
from collections.abc import Coroutine
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError, for_code
from tests.compat.agents.loop import Driver, Json, Partition, Refusal, record, serve, unhex


def _json(message: Any) -> Json:
    return record(message.partition, message.offset, message.timestamp, message.key, message.value, message.headers)


class Aio(Driver):
    """aiokafka, asked for everything it can do."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.consumer: Any = None
        self.producers: dict[str, Any] = {}
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def refusal(self, error: Exception) -> Refusal:
        return Refusal(getattr(error, "errno", None) if isinstance(error, KafkaError) else None, repr(error))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def produce(self, topic: str, records: list[Json], codec: str, acks: int, options: Json) -> list[list[int]]:
        return self._run(self._produce(topic, records, codec, acks, options))  # type: ignore[no-any-return]

    async def _produce(self, topic: str, records: list[Json], codec: str, acks: int, options: Json) -> list[list[int]]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == -1 else acks,
            enable_idempotence=options.get("idempotent", False),
            linger_ms=50,
            **options.get("native", {}),
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    value=unhex(item["value"]),
                    key=unhex(item["key"]),
                    headers=[(name, unhex(value)) for name, value in item["headers"]],
                    partition=item["partition"],
                    timestamp_ms=item["timestamp"],
                )
                for item in records
            ]
            placed = [await future for future in futures]
        finally:
            await producer.stop()
        if acks == 0:
            return [[-1, -1] for _ in placed]
        return [[place.partition, place.offset] for place in placed]

    def read(self, topic: str, partitions: list[int], isolation: str) -> list[Json]:
        return self._run(self._read(topic, partitions, isolation))  # type: ignore[no-any-return]

    async def _read(self, topic: str, partitions: list[int], isolation: str) -> list[Json]:
        places = [TopicPartition(topic, number) for number in partitions]
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, enable_auto_commit=False, isolation_level=isolation
        )
        await consumer.start()
        try:
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            ends = await consumer.end_offsets(places)
            found: list[Json] = []
            while [place for place in places if await consumer.position(place) < ends[place]]:
                for batch in (await consumer.getmany(timeout_ms=1000)).values():
                    found.extend(_json(message) for message in batch)
        finally:
            await consumer.stop()
        return found

    def offsets(self, topic: str, partition: int, timestamp: int) -> Json:
        return self._run(self._offsets(TopicPartition(topic, partition), timestamp))  # type: ignore[no-any-return]

    async def _offsets(self, place: TopicPartition, timestamp: int) -> Json:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap)
        await consumer.start()
        try:
            at = (await consumer.offsets_for_times({place: timestamp}))[place]
            return {
                "earliest": (await consumer.beginning_offsets([place]))[place],
                "latest": (await consumer.end_offsets([place]))[place],
                "at": None if at is None else at.offset,
            }
        finally:
            await consumer.stop()

    # --- transactions
    def open_producer(self, producer: str, transactional_id: str, timeout_ms: int) -> None:
        async def work() -> None:
            self.producers[producer] = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
            )
            await self.producers[producer].start()

        self._run(work())

    def begin(self, producer: str) -> None:
        self._run(self.producers[producer].begin_transaction())

    def send(self, producer: str, topic: str, records: list[Json]) -> None:
        async def work() -> None:
            futures = [
                await self.producers[producer].send(
                    topic, value=unhex(item["value"]), key=unhex(item["key"]), partition=item["partition"]
                )
                for item in records
            ]
            for future in futures:
                await future

        self._run(work())

    def send_offsets(self, producer: str, group: str, offsets: list[list[Any]], as_member: bool) -> None:
        assert not as_member, "it can name the group only"
        wanted = {TopicPartition(topic, number): offset for topic, number, offset in offsets}
        self._run(self.producers[producer].send_offsets_to_transaction(wanted, group))

    def commit_transaction(self, producer: str) -> None:
        self._run(self.producers[producer].commit_transaction())

    def abort_transaction(self, producer: str) -> None:
        self._run(self.producers[producer].abort_transaction())

    def close_producer(self, producer: str) -> None:
        self._run(self.producers.pop(producer).stop())

    # --- a member of a group
    def join(self, group: str, topics: list[str], options: Json) -> None:
        self._run(self._join(group, topics, options))
        self.joined = True

    async def _join(self, group: str, topics: list[str], options: Json) -> None:
        native = {"group_instance_id": options["instance"]} if "instance" in options else {}
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset=options.get("reset", "earliest"),
            session_timeout_ms=options.get("session_ms", 6000),
            heartbeat_interval_ms=500,
            metadata_max_age_ms=1000,
            partition_assignment_strategy=[RangePartitionAssignor],
            **native,
        )
        if "pattern" in options:
            self.consumer.subscribe(pattern=options["pattern"])
        else:
            self.consumer.subscribe(topics)
        await self.consumer.start()

    def poll(self) -> tuple[list[Json], set[Partition]]:
        batches = self._run(self.consumer.getmany(timeout_ms=100))
        records = [_json(message) for batch in batches.values() for message in batch]
        return records, {(place.topic, place.partition) for place in self.consumer.assignment()}

    def commit(self) -> None:
        self._run(self.consumer.commit())

    def committed(self, topic: str, partition: int) -> int | None:
        offset = self._run(self.consumer.committed(TopicPartition(topic, partition)))
        return None if offset is None else int(offset)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self.consumer.seek(TopicPartition(topic, partition), offset)

    def leave(self) -> None:
        self._run(self.consumer.stop())
        self.joined = False

    def commit_alone(self, group: str, topic: str, partition: int, offset: int) -> int:
        async def work() -> int:
            place = TopicPartition(topic, partition)
            consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, group_id=group, enable_auto_commit=False)
            await consumer.start()
            try:
                consumer.assign([place])
                await consumer.commit({place: offset})
                return int(await consumer.committed(place))
            finally:
                await consumer.stop()

        return int(self._run(work()))

    # --- administration
    def _administer(self, call: str, *arguments: Any, **named: Any) -> Any:
        async def work() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            try:
                return await getattr(admin, call)(*arguments, **named)
            finally:
                await admin.close()

        return self._run(work())

    def create_topic(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        wanted = NewTopic(topic, partitions, 1, topic_configs=config)
        _check(self._administer("create_topics", [wanted]).topic_errors)

    def delete_topic(self, topic: str) -> None:
        _check(self._administer("delete_topics", [topic]).topic_error_codes)

    def create_partitions(self, topic: str, total: int) -> None:
        _check(self._administer("create_partitions", {topic: NewPartitions(total)}).topic_errors)

    def list_topics(self) -> list[str]:
        return sorted(self._administer("list_topics"))

    def describe_topic(self, topic: str) -> Json:
        (described,) = self._administer("describe_topics", [topic])
        if described["error_code"]:
            raise for_code(described["error_code"])
        partitions = described["partitions"]
        return {"partitions": len(partitions), "leaders": [partition["leader"] for partition in partitions]}

    def describe_config(self, topic: str) -> dict[str, str]:
        (answer,) = self._administer("describe_configs", [ConfigResource(ConfigResourceType.TOPIC, topic)])
        (resource,) = answer.resources
        if resource[0]:
            raise for_code(resource[0])
        return {entry[0]: entry[1] for entry in resource[4]}

    def replace_config(self, topic: str, config: dict[str, str]) -> None:
        wanted = ConfigResource(ConfigResourceType.TOPIC, topic, configs=config)
        for answer in self._administer("alter_configs", [wanted]):
            for resource in answer.resources:
                if resource[0]:
                    raise for_code(resource[0])

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        place = TopicPartition(topic, partition)
        answer = self._administer("delete_records", {place: RecordsToDelete(before_offset=offset)})
        return int(answer[place])

    def list_groups(self) -> list[str]:
        return [group[0] for group in self._administer("list_consumer_groups")]

    def describe_group(self, group: str) -> Json:
        (answer,) = self._administer("describe_consumer_groups", [group])
        (found,) = answer.groups
        return {"state": found[2].upper(), "members": [[] for _ in found[5]]}

    def group_offsets(self, group: str) -> dict[str, int]:
        found = self._administer("list_consumer_group_offsets", group)
        return {f"{place.topic}/{place.partition}": value.offset for place, value in found.items()}

    def describe_cluster(self) -> Json:
        found = self._administer("describe_cluster")
        brokers = [[broker["node_id"], broker["host"], broker["port"]] for broker in found["brokers"]]
        return {"brokers": brokers, "controller": found["controller_id"], "cluster_id": found["cluster_id"]}


def _check(answers: Any) -> None:
    """Each answer is (name, error code, ...)."""
    for answer in answers:
        if answer[1]:
            raise for_code(answer[1])(str(answer))


if __name__ == "__main__":
    serve(Aio(sys.argv[1]))
