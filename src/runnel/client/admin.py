"""Administration of topics: what there is, and changing it. Groups are in `group_admin`.

Changes go to the controller and are tried again only where trying twice does no harm.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar
from uuid import UUID

from runnel.client.cluster import Cluster, Node
from runnel.client.each import of_each
from runnel.client.errors import TopicMissing, check
from runnel.client.metadata import ClusterView, Topic, TopicPartition
from runnel.client.offsets import by_topic
from runnel.model.errors import NotLeader, UnknownTopic
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

T = TypeVar("T")

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
SET, DELETE = 0, 1  # operations of IncrementalAlterConfigs
BROKER_DEFAULT = -1  # number of partitions or replicas: as the broker is set up
SOURCES = {1: "topic", 2: "broker (dynamic)", 3: "cluster (dynamic)", 4: "broker", 5: "default", 6: "logger"}


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = BROKER_DEFAULT
    replicas: int = BROKER_DEFAULT
    config: Mapping[str, str] = field(default_factory=dict)


class CreatedTopic(NamedTuple):
    name: str
    id: UUID
    partitions: int
    replicas: int


class ConfigEntry(NamedTuple):
    name: str
    value: str | None
    source: str  # topic: set for this topic; default: nobody set it; ...
    read_only: bool
    sensitive: bool
    documentation: str | None


class Disk(NamedTuple):
    """What lies on the disk of one broker."""

    sizes: Mapping[TopicPartition, int]  # bytes of each partition
    total_bytes: int  # -1: it does not say
    free_bytes: int


class Admin:
    """Administrative calls; each is one question to the cluster."""

    def __init__(self, cluster: Cluster, *, timeout_ms: int = 30_000) -> None:
        self.cluster = cluster
        self.timeout_ms = timeout_ms

    # --- looking
    async def view(self, topics: Iterable[str] | None = None) -> ClusterView:
        """Brokers and topics: these, or all."""
        names = None if topics is None else list(topics)
        return await self.cluster.persist(lambda: self.cluster.view(names))

    async def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """These topics; raises if one does not exist."""
        wanted = list(names)
        view = await self.view(wanted)
        for name in wanted:
            if name not in view.topics:
                await self.cluster.topic(name)  # says what is wrong with it, or finds it after all
        return {name: view.topics.get(name) or await self.cluster.topic(name) for name in wanted}

    async def configs(self, topics: Iterable[str], keys: Sequence[str] | None = None) -> dict[str, list[ConfigEntry]]:
        """The settings of these topics (all, or these), with where the value of each comes from."""
        names = list(topics)
        R = m.DescribeConfigsRequest
        wanted = None if keys is None else list(keys)
        resources = [
            R.DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=wanted)
            for name in names
        ]
        request = R(resources=resources, include_synonyms=False, include_documentation=True)
        answer = await self._ask_any(Api.DESCRIBE_CONFIGS, request, m.DescribeConfigsResponse)
        found = {}
        for result in answer.results:
            check(
                result.error_code,
                action=f"read the settings of topic {result.resource_name!r}",
                broker=str(self.cluster),
                message=result.error_message,
            )
            found[result.resource_name] = [_entry_of(c) for c in result.configs]
        return found

    async def sizes(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """Bytes on disk of each partition, on the broker that has most of it, of those that answer."""
        wanted = (await self.topics(topics)).values()
        sizes: dict[TopicPartition, int] = {}
        for disk in (await of_each(self.cluster, lambda broker: self.disk(broker, wanted))).values():
            for where, size in (disk.sizes if disk is not None else {}).items():
                sizes[where] = max(size, sizes.get(where, 0))
        return sizes

    async def disk(self, broker: int, topics: Iterable[Topic] | None = None) -> Disk:
        """What one broker has on its disk, of these topics or of all."""
        R = m.DescribeLogDirsRequest
        asked = (
            None
            if topics is None
            else [R.DescribableLogDirTopic(topic=t.name, partitions=list(t.partitions)) for t in topics]
        )
        node = self.cluster.broker(broker)
        answer = await node.ask(Api.DESCRIBE_LOG_DIRS, R(topics=asked), m.DescribeLogDirsResponse)
        sizes = {
            TopicPartition(topic.name, p.partition_index): p.partition_size
            for folder in answer.results
            for topic in folder.topics
            for p in topic.partitions
        }
        total, free = (
            sum(size) for size in zip(*((f.total_bytes, f.usable_bytes) for f in answer.results), strict=True)
        )
        return Disk(sizes, total, free)

    async def _ask_any(self, api: Api, request: object, reply: type[T]) -> T:
        return await self.cluster.persist(lambda: self.cluster.ask_any(api, request, reply))

    # --- changing topics
    async def on_controller(self, change: Callable[[Node], Awaitable[T]]) -> T:
        """Make a change on the controller; ask anew who that is if it moved."""

        async def attempt() -> T:
            try:
                return await change(await self.cluster.controller())
            except NotLeader:
                await self.cluster.refresh([])
                raise

        return await self.cluster.persist(attempt, timeout_ms=self.timeout_ms)

    async def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        """Create topics; raises for the first that can't be, after the others were."""
        R = m.CreateTopicsRequest
        wanted = [
            R.CreatableTopic(
                name=t.name,
                num_partitions=t.partitions,
                replication_factor=t.replicas,
                configs=[R.CreatableTopicConfig(name=k, value=v) for k, v in t.config.items()],
            )
            for t in topics
        ]
        request = R(topics=wanted, timeout_ms=self.timeout_ms, validate_only=validate_only)

        async def change(node: Node) -> list[CreatedTopic]:
            answer = await node.ask(Api.CREATE_TOPICS, request, m.CreateTopicsResponse)
            for t in answer.topics:
                action = f"create topic {t.name!r}"
                check(t.error_code, action=action, broker=str(node), message=t.error_message)
            return [CreatedTopic(t.name, t.topic_id, t.num_partitions, t.replication_factor) for t in answer.topics]

        created = await self.on_controller(change)
        if not validate_only:
            await self._until_served({t.name: t.partitions for t in created})
        return created

    async def _until_served(self, counts: Mapping[str, int]) -> None:
        """The controller knows these partitions; wait until those who are asked for them have heard of it."""

        async def attempt() -> None:
            view = await self.cluster.view(counts)
            for name, count in counts.items():
                known = view.topics.get(name)
                led = 0 if known is None else sum(p.leader >= 0 for p in known.partitions.values())
                if led < max(count, 1):
                    raise UnknownTopic(
                        f"topic {name!r} was changed, but {self.cluster} serves only {led} of {count} partitions: wait"
                    )

        await self.cluster.persist(attempt, timeout_ms=self.timeout_ms)

    async def delete_topics(self, names: Iterable[str]) -> None:
        R = m.DeleteTopicsRequest
        wanted = list(names)
        topics = [R.DeleteTopicState(name=name) for name in wanted]
        request = R(topics=topics, topic_names=wanted, timeout_ms=self.timeout_ms)

        async def change(node: Node) -> None:
            answer = await node.ask(Api.DELETE_TOPICS, request, m.DeleteTopicsResponse)
            for t in answer.responses:
                action = f"delete topic {t.name!r}"
                _check_topic(t.error_code, action=action, broker=str(node), message=t.error_message)
                self.cluster.forget(t.name or "")

        await self.on_controller(change)

    async def create_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        """Let a topic have so many partitions in all."""
        R = m.CreatePartitionsRequest
        wanted = [R.CreatePartitionsTopic(name=topic, count=count, assignments=None)]
        request = R(topics=wanted, timeout_ms=self.timeout_ms, validate_only=validate_only)

        async def change(node: Node) -> None:
            answer = await node.ask(Api.CREATE_PARTITIONS, request, m.CreatePartitionsResponse)
            for t in answer.results:
                action = f"add partitions to topic {t.name!r}"
                _check_topic(t.error_code, action=action, broker=str(node), message=t.error_message)
            self.cluster.forget(topic)

        await self.on_controller(change)
        if not validate_only:
            await self._until_served({topic: count})

    async def alter_config(
        self, topic: str, *, set_: Mapping[str, str], reset: Iterable[str] = (), validate_only: bool = False
    ) -> None:
        """Set settings of a topic, and take others back to their defaults."""
        change = _alteration((TOPIC_RESOURCE, topic), f"topic {topic!r}", set_, reset, validate_only)
        await self.on_controller(change)

    async def alter_broker_config(
        self, broker: int | None, *, set_: Mapping[str, str], reset: Iterable[str] = ()
    ) -> None:
        """Set settings of a broker (None: of all of them) while it runs, and take others back."""
        whose = "all brokers" if broker is None else f"broker {broker}"
        change = _alteration((BROKER_RESOURCE, "" if broker is None else str(broker)), whose, set_, reset, False)
        if broker is None or broker not in (await self.view([])).brokers:
            await self.on_controller(change)
            return
        try:
            await change(self.cluster.broker(broker))  # Kafka wants that broker to be asked itself
        except NotLeader:
            await self.on_controller(change)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Remove what lies before these offsets; the first offset of each partition afterwards."""
        starts: dict[TopicPartition, int] = {}

        async def attempt() -> dict[TopicPartition, int]:
            leaders: dict[int, list[TopicPartition]] = {}
            for where in before:
                if where not in starts:
                    leaders.setdefault((await self.cluster.leader(where)).broker, []).append(where)
            for broker, partitions in leaders.items():
                await self._delete_on(self.cluster.broker(broker), partitions, before, starts)
            return starts

        return await self.cluster.persist(attempt, timeout_ms=self.timeout_ms)

    async def _delete_on(
        self,
        node: Node,
        partitions: list[TopicPartition],
        before: Mapping[TopicPartition, int],
        starts: dict[TopicPartition, int],
    ) -> None:
        R = m.DeleteRecordsRequest
        topics = [
            R.DeleteRecordsTopic(
                name=topic,
                partitions=[
                    R.DeleteRecordsPartition(partition_index=n, offset=before[TopicPartition(topic, n)])
                    for n in numbers
                ],
            )
            for topic, numbers in by_topic(partitions).items()
        ]
        request = R(topics=topics, timeout_ms=self.timeout_ms)
        answer = await node.ask(Api.DELETE_RECORDS, request, m.DeleteRecordsResponse)
        for t in answer.topics:
            for p in t.partitions:
                where = TopicPartition(t.name, p.partition_index)
                if p.error_code:
                    action = f"remove messages of {where} before offset {before[where]}"
                    self.cluster.raise_for(p.error_code, action=action, broker=node, topics=[t.name])
                starts[where] = p.low_watermark


def _alteration(
    which: tuple[int, str], whose: str, set_: Mapping[str, str], reset: Iterable[str], validate_only: bool
) -> Callable[[Node], Awaitable[None]]:
    """What is asked of a broker to change the settings of one resource."""
    R = m.IncrementalAlterConfigsRequest
    changes = [R.AlterableConfig(name=k, config_operation=SET, value=v) for k, v in set_.items()]
    changes += [R.AlterableConfig(name=k, config_operation=DELETE, value=None) for k in reset]
    resource = R.AlterConfigsResource(resource_type=which[0], resource_name=which[1], configs=changes)
    request = R(resources=[resource], validate_only=validate_only)

    async def change(node: Node) -> None:
        answer = await node.ask(Api.INCREMENTAL_ALTER_CONFIGS, request, m.IncrementalAlterConfigsResponse)
        for r in answer.responses:
            action = f"change settings of {whose}"
            _check_topic(r.error_code, action=action, broker=str(node), message=r.error_message)

    return change


def _check_topic(code: int, *, action: str, broker: str, message: str | None) -> None:
    """The controller knows all topics: when it does not know one, there is none, and waiting does not help."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise TopicMissing(f"can't {action}: there is no such topic on broker {broker}; check the name")
    check(code, action=action, broker=broker, message=message)


def _entry_of(config: m.DescribeConfigsResponse.DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        SOURCES.get(config.config_source, "unknown"),
        config.read_only,
        config.is_sensitive,
        config.documentation,
    )
