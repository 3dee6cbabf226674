"""What clients of every age ask a coordinator of transactions, against a real broker."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.client.talk import talk
from tests.client.test_cluster_admin import eventually

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster, Node
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

TRANSACTION = 1
Add = m.AddPartitionsToTxnRequest
Who = tuple[int, int]


class Session:
    """One topic, one transactional id, and a broker to talk to."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self.name = name

    async def ask(self, api: Api, request: Any, reply: type[Any], version: int | None = None) -> Any:
        return await self.node.ask(api, request, reply, version_max=version)

    async def find(self, version: int | None = None, key_type: int = TRANSACTION) -> Any:
        request = m.FindCoordinatorRequest(key=self.name, key_type=key_type, coordinator_keys=[self.name])
        answer = await self.ask(Api.FIND_COORDINATOR, request, m.FindCoordinatorResponse, version)
        return answer.coordinators[0] if answer.coordinators else answer

    async def init(self, version: int | None = None, who: Who = (-1, -1), timeout_ms: int = 60_000) -> Any:
        request = m.InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=timeout_ms, producer_id=who[0], producer_epoch=who[1]
        )
        return await self.ask(Api.INIT_PRODUCER_ID, request, m.InitProducerIdResponse, version)

    async def begun(self) -> Who:
        """A producer that may write; its coordinator is there and has read its log."""
        found: list[Who] = []

        async def attempt() -> bool:
            answer = await self.init()
            found.append((answer.producer_id, answer.producer_epoch))
            return bool(answer.error_code == 0)

        await eventually(attempt)
        return found[-1]

    async def add(self, who: Who, *numbers: int, version: int = 3, verify: bool = False) -> list[int]:
        """The error code of each partition."""
        topics = [Add.AddPartitionsToTxnTopic(name=self.name, partitions=list(numbers))]
        if version < 4:
            request = Add(
                v3_and_below_transactional_id=self.name, v3_and_below_producer_id=who[0],
                v3_and_below_producer_epoch=who[1], v3_and_below_topics=topics,
            )  # fmt: skip
        else:
            one = Add.AddPartitionsToTxnTransaction(
                transactional_id=self.name, producer_id=who[0], producer_epoch=who[1], verify_only=verify, topics=topics
            )
            request = Add(transactions=[one])
        answer = await self.ask(Api.ADD_PARTITIONS_TO_TXN, request, m.AddPartitionsToTxnResponse, version)
        results = answer.results_by_topic_v3_and_below
        if version >= 4:
            [result] = answer.results_by_transaction
            assert result.transactional_id == self.name
            results = result.topic_results
        return [each.partition_error_code for topic in results for each in topic.results_by_partition]

    async def end(self, who: Who, version: int, *, commit: bool = True) -> Any:
        request = m.EndTxnRequest(
            transactional_id=self.name, producer_id=who[0], producer_epoch=who[1], committed=commit
        )
        return await self.ask(Api.END_TXN, request, m.EndTxnResponse, version)

    async def describe(self) -> Any:
        request = m.DescribeTransactionsRequest(transactional_ids=[self.name])
        answer = await self.ask(Api.DESCRIBE_TRANSACTIONS, request, m.DescribeTransactionsResponse)
        return answer.transaction_states[0]

    async def until(self, state: str) -> None:
        async def attempt() -> bool:
            return bool((await self.describe()).transaction_state == state)

        await eventually(attempt)

    async def list(self, version: int = 2, **filters: Any) -> Any:
        return await self.ask(
            Api.LIST_TRANSACTIONS, m.ListTransactionsRequest(**filters), m.ListTransactionsResponse, version
        )


def on(broker: BrokerProcess, name: str, work: Callable[[Session], Awaitable[None]]) -> None:
    async def main(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=2, replicas=1)])
        session = Session(cluster.broker((await cluster.topic(name)).partitions[0].leader), name)

        async def found() -> bool:
            return bool((await session.find()).error_code == 0)

        await eventually(found)
        await work(session)

    talk(broker.kafka, main)


@pytest.mark.parametrize("version", range(1, 7))
def test_the_coordinator_of_a_transactional_id_is_found(broker: BrokerProcess, version: int) -> None:
    async def work(session: Session) -> None:
        found = await session.find(version)
        assert (found.error_code, f"{found.host}:{found.port}") == (0, broker.kafka)
        assert (await session.find(version, key_type=9)).error_code == ErrorCode.INVALID_REQUEST

    on(broker, f"found-{version}", work)


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id(broker: BrokerProcess, version: int) -> None:
    async def work(session: Session) -> None:
        who = await session.begun()
        again = await session.init(version)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (0, who[0], who[1] + 1)
        if version >= 3:
            fenced = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
            assert (await session.init(version, who)).error_code == fenced
            assert (await session.init(version, (who[0], -1))).error_code == ErrorCode.INVALID_REQUEST
        too_long = await session.init(version, timeout_ms=10**9)
        assert too_long.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert (too_long.producer_id, too_long.producer_epoch) == (-1, -1)

    on(broker, f"init-{version}", work)


def test_an_empty_transactional_id_is_refused_and_none_is_an_idempotent_producer(broker: BrokerProcess) -> None:
    async def work(session: Session) -> None:
        async def init(transactional_id: str | None) -> Any:
            request = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1_000)
            return await session.ask(Api.INIT_PRODUCER_ID, request, m.InitProducerIdResponse)

        async def refused() -> bool:  # some coordinator may be reading its log still
            return bool((await init("")).error_code == ErrorCode.INVALID_REQUEST)

        await eventually(refused)
        answer = await init(None)
        assert (answer.error_code, answer.producer_epoch) == (0, 0)

    on(broker, "nameless", work)


@pytest.mark.parametrize("version", range(6))
def test_add_partitions_to_txn(broker: BrokerProcess, version: int) -> None:
    async def work(session: Session) -> None:
        who = await session.begun()
        assert await session.add(who, 0, version=version) == [0]
        assert await session.add(who, 0, 7, version=version) == [
            ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]  # fmt: skip
        fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert await session.add((who[0], who[1] + 1), 1, version=version) == [fenced]
        assert await session.add((10**9, 0), 1, version=version) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        if version >= 4:
            assert await session.add(who, 0, 1, version=version, verify=True) == [0, ErrorCode.TRANSACTION_ABORTABLE]
        assert (await session.describe()).topics[0].partitions == [0]

    on(broker, f"add-{version}", work)


@pytest.mark.parametrize("version", range(5))
def test_add_offsets_to_txn(broker: BrokerProcess, version: int) -> None:
    async def work(session: Session) -> None:
        who = await session.begun()

        async def add(epoch: int) -> int:
            request = m.AddOffsetsToTxnRequest(
                transactional_id=session.name, producer_id=who[0], producer_epoch=epoch, group_id="g"
            )
            answer = await session.ask(Api.ADD_OFFSETS_TO_TXN, request, m.AddOffsetsToTxnResponse, version)
            return int(answer.error_code)

        assert await add(who[1]) == 0
        assert [topic.topic for topic in (await session.describe()).topics] == ["__consumer_offsets"]
        fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert await add(who[1] + 1) == fenced

    on(broker, f"offsets-{version}", work)


@pytest.mark.parametrize("version", range(6))
def test_end_txn(broker: BrokerProcess, version: int) -> None:
    async def work(session: Session) -> None:
        who = await session.begun()
        assert (await session.end(who, version)).error_code == ErrorCode.INVALID_TXN_STATE
        await session.add(who, 0)
        ended = await session.end(who, version)
        assert ended.error_code == 0
        await session.until("CompleteCommit")
        again = await session.end(who, version)
        other = await session.end(who, version, commit=False)
        assert (again.error_code, other.error_code) == (0, ErrorCode.INVALID_TXN_STATE)
        if version >= 5:
            assert (ended.producer_id, ended.producer_epoch) == (who[0], who[1] + 1)
            assert (again.producer_id, again.producer_epoch) == (who[0], who[1] + 1)
        fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await session.end((who[0], who[1] + 9), version)).error_code == fenced

    on(broker, f"end-{version}", work)


@pytest.mark.parametrize(
    ("version", "expected"),
    [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED), (5, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_whoever_took_too_long_is_told_in_words_of_its_age_and_can_go_on(
    broker: BrokerProcess, version: int, expected: ErrorCode
) -> None:
    async def work(session: Session) -> None:
        await session.begun()
        short = await session.init(timeout_ms=50)
        who = (short.producer_id, short.producer_epoch)
        await session.add(who, 0)
        await session.until("CompleteAbort")
        assert (await session.end(who, version)).error_code == expected
        assert (await session.init(who=who)).producer_epoch == who[1] + 1

    on(broker, f"slow-{version}", work)


def test_transactions_are_described(broker: BrokerProcess) -> None:
    async def work(session: Session) -> None:
        async def unknown() -> bool:
            return bool((await session.describe()).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)

        await eventually(unknown)
        who = await session.begun()
        await session.add(who, 1)
        found = await session.describe()
        assert (found.error_code, found.transaction_state, found.transaction_timeout_ms) == (0, "Ongoing", 60_000)
        assert (found.producer_id, found.producer_epoch) == who
        assert [(topic.topic, topic.partitions) for topic in found.topics] == [(session.name, [1])]
        assert found.transaction_start_time_ms > 0

    on(broker, "described", work)


def test_transactions_are_listed_with_filters(broker: BrokerProcess) -> None:
    async def work(session: Session) -> None:
        who = await session.begun()
        await session.add(who, 0)

        async def names(**filters: Any) -> list[str]:
            answer = await session.list(**filters)
            assert answer.error_code == 0
            return [each.transactional_id for each in answer.transaction_states]

        assert session.name in await names()
        assert await names(producer_id_filters=[who[0]]) == [session.name]
        assert session.name in await names(version=0, state_filters=["Ongoing"])
        assert session.name not in await names(state_filters=["Empty"])
        assert session.name not in await names(version=1, duration_filter=10**9)
        assert await names(transactional_id_pattern="li.*ed") == [session.name]
        answer = await session.list(state_filters=["Ongoing", "Nonsense"])
        assert answer.unknown_state_filters == ["Nonsense"]
        assert (await session.list(transactional_id_pattern="[")).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION

    on(broker, "listed", work)


def test_the_topic_of_transactions_is_internal(broker: BrokerProcess) -> None:
    async def work(session: Session) -> None:
        wanted = [m.MetadataRequest.MetadataRequestTopic(name="__transaction_state")]
        [topic] = (await session.ask(Api.METADATA, m.MetadataRequest(topics=wanted), m.MetadataResponse)).topics
        assert (topic.error_code, topic.is_internal, len(topic.partitions)) == (0, True, 16)
        deleted = await session.ask(
            Api.DELETE_TOPICS, m.DeleteTopicsRequest(topic_names=["__transaction_state"], timeout_ms=1_000),
            m.DeleteTopicsResponse, 5,
        )  # fmt: skip
        assert deleted.responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    on(broker, "internal", work)


def test_settings_and_features_are_told(broker: BrokerProcess) -> None:
    async def work(session: Session) -> None:
        versions = await session.ask(
            Api.API_VERSIONS, m.ApiVersionsRequest(client_software_name="x", client_software_version="1"),
            m.ApiVersionsResponse, 3,
        )  # fmt: skip
        levels = {feature.name: feature.max_version_level for feature in versions.finalized_features}
        assert levels["transaction.version"] == 2
        resource = m.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=4, resource_name="1", configuration_keys=None
        )
        answer = await session.ask(
            Api.DESCRIBE_CONFIGS, m.DescribeConfigsRequest(resources=[resource]), m.DescribeConfigsResponse
        )
        told = {config.name: config.value for config in answer.results[0].configs}
        assert told["transaction.state.log.num.partitions"] == "16"
        assert told["transaction.max.timeout.ms"] == "900000"
        assert told["transactional.id.expiration.ms"] == "604800000"

    on(broker, "told", work)
