"""While no controller can be asked: every request is answered in the protocol, and no connection is closed."""

import os
import signal
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import cluster_broker
from tests.doors.kafka.test_traps import Line

from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

LIMIT_S = 120.0
LONG_SESSION = {"RUNNEL_SESSION_MS": "40000"}  # no other controller comes meanwhile


@contextmanager
def stopped(broker: BrokerProcess) -> Iterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def ask_about(line: Line, *names: str) -> dict[str, int]:
    """The error code of each topic."""
    wanted = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    request = m.MetadataRequest(topics=wanted, allow_auto_topic_creation=True)
    return {topic.name: topic.error_code for topic in line.ask(Api.METADATA, 12, request).topics}


def controller_of(line: Line) -> int:
    return int(line.ask(Api.DESCRIBE_CLUSTER, 1, m.DescribeClusterRequest()).controller_id)


def test_a_topic_that_can_not_be_made_now_has_no_leader_yet(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    there, missing = f"there-{uuid.uuid4().hex}", f"missing-{uuid.uuid4().hex}"
    with ExitStack() as stack:
        brokers = {
            number: stack.enter_context(cluster_broker(zookeeper, tmp_path, number, **LONG_SESSION))
            for number in (1, 2)
        }
        lines = {number: stack.enter_context(Line(broker.kafka)) for number, broker in brokers.items()}
        controller = controller_of(lines[1])
        line = lines[3 - controller]
        made = until_known(line, there)
        assert made == 0
        with stopped(brokers[controller]):
            bad = "no topic / can be called so"
            assert ask_about(line, there, missing, bad) == {
                there: made,
                missing: ErrorCode.LEADER_NOT_AVAILABLE,
                bad: ErrorCode.INVALID_TOPIC_EXCEPTION,
            }
            with ThreadPoolExecutor(len(REQUESTS)) as pool:  # whatever it is: an answer
                list(pool.map(lambda each: answered(brokers[3 - controller], *each), REQUESTS))
        assert until_known(line, missing) == 0


def answered(broker: BrokerProcess, api: Api, version: int, request: Any) -> None:
    with Line(broker.kafka) as line:
        line.ask(api, version, request)


def until_known(line: Line, name: str) -> int:
    end = time.monotonic() + LIMIT_S
    while (code := ask_about(line, name)[name]) == ErrorCode.LEADER_NOT_AVAILABLE:
        assert time.monotonic() < end
        time.sleep(0.05)
    return code


def _configs(kind: int, name: str) -> Any:
    change = m.IncrementalAlterConfigsRequest.AlterableConfig(name="retention.ms", config_operation=0, value="1000000")
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=[change]
    )
    return m.IncrementalAlterConfigsRequest(resources=[resource])


SHORT_MS = 100
# What needs the controller, or the topic of a coordinator that only it can make.
REQUESTS: list[tuple[Api, int, Any]] = [
    (Api.CREATE_TOPICS, 7, m.CreateTopicsRequest(
        topics=[m.CreateTopicsRequest.CreatableTopic(name="n", num_partitions=1, replication_factor=1)],
        timeout_ms=SHORT_MS)),
    (Api.DELETE_TOPICS, 6, m.DeleteTopicsRequest(
        topics=[m.DeleteTopicsRequest.DeleteTopicState(name="n")], timeout_ms=SHORT_MS)),
    (Api.INCREMENTAL_ALTER_CONFIGS, 1, _configs(2, "n")),
    (Api.ELECT_LEADERS, 2, m.ElectLeadersRequest(topic_partitions=None, timeout_ms=SHORT_MS)),
    (Api.LIST_PARTITION_REASSIGNMENTS, 0, m.ListPartitionReassignmentsRequest(timeout_ms=SHORT_MS)),
    (Api.FIND_COORDINATOR, 6, m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])),
    (Api.INIT_PRODUCER_ID, 5, m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)),
    (Api.SHARE_FETCH, 1, m.ShareFetchRequest(group_id="g", member_id="m", share_session_epoch=0, topics=[
        m.ShareFetchRequest.FetchTopic(topic_id=uuid.uuid4(), partitions=[
            m.ShareFetchRequest.FetchPartition(partition_index=0)])])),
    (Api.DESCRIBE_SHARE_GROUP_OFFSETS, 1, m.DescribeShareGroupOffsetsRequest(
        groups=[m.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(group_id="g")])),
    (Api.DESCRIBE_LOG_DIRS, 4, m.DescribeLogDirsRequest(topics=None)),
    (Api.LIST_GROUPS, 5, m.ListGroupsRequest()),
]  # fmt: skip
