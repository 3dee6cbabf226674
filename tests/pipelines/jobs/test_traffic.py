"""What the traffic job tells: numbers of windows and lags, and each batch once in its tables."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runnel.client.admin import Admin
from runnel.client.sync import connect
from runnel.pipelines.conf import StreamConf
from runnel.pipelines.connector.gateway import Gateway
from runnel.pipelines.errors import BadOption
from runnel.pipelines.jobs.traffic.cluster import make_output, partition_counts, sample_lags
from runnel.pipelines.jobs.traffic.records import (
    ALL,
    HotKey,
    Lag,
    Latency,
    Window,
    hot_keys,
    lags_of,
    message_of,
    row_of,
    skew,
    window_of,
)
from runnel.testing.process import BrokerProcess

START = datetime(2026, 11, 16, 9, 30, tzinfo=UTC)


def row(**changes: Any) -> dict[str, Any]:
    """A row of the aggregate, as Spark hands it out: times have no zone."""
    return {
        "topic": "orders", "partition": ALL, "start": START.replace(tzinfo=None),
        "end": (START + timedelta(minutes=1)).replace(tzinfo=None), "messages": 120, "bytes": 6_000, "size_max": 90,
        "kind_min": 0, "kind_max": 0, "latency": [5, 9, 12], "latency_max": 30, "used": [(0, 90), (2, 30)],
        "keys": [("hot", 60), (None, 40), ("b", 20)], **changes,
    }  # fmt: skip


def test_a_window_of_a_topic_has_rates_sizes_latency_skew_and_keys() -> None:
    window = window_of(row(), partitions=4)
    assert (window.partition, window.start, window.end) == (None, START, START + timedelta(minutes=1))
    assert (window.messages_per_s, window.bytes_per_s, window.size_mean, window.size_max) == (2.0, 100.0, 50.0, 90)
    assert (window.latency_ms, window.timestamps) == (Latency(5, 9, 12, 30), "create")
    assert (window.partitions, window.partitions_used, window.skew) == (4, 2, 3.0)
    assert window.hot_keys == [HotKey("hot", 60, 0.5), HotKey("b", 20, 0.1667)]


def test_a_window_of_a_partition_has_none_of_what_only_a_topic_has() -> None:
    window = window_of(row(partition=3, used=[(None, 120)], keys=[(None, 120)]), partitions=4)
    assert (window.partition, window.skew, window.partitions, window.hot_keys) == (3, None, None, [])


def test_what_nobody_can_know_is_left_out() -> None:
    window = window_of(row(latency=None, latency_max=None, kind_min=0, kind_max=1, used=None, keys=None), None)
    assert (window.latency_ms, window.skew, window.hot_keys, window.timestamps) == (None, None, [], "mixed")
    assert hot_keys([(None, 5)], 5) == []


@pytest.mark.parametrize(
    ("counts", "partitions", "expected"),
    [([10, 10], 2, 1.0), ([10, 10], 4, 2.0), ([40], 4, 4.0), ([30, 10], None, 1.5), ([], 4, None), ([5, 5], 1, 1.0)],
)
def test_skew_is_the_busiest_partition_against_an_even_share(
    counts: list[int], partitions: int | None, expected: float | None
) -> None:
    assert skew(counts, partitions) == expected


def test_a_groups_lag_is_told_by_topic() -> None:
    told = lags_of("billing", [("a", 3), ("b", 7), ("a", 5), ("b", 0)], START)
    assert told == [
        Lag(group="billing", topic="a", at=START, lag=8, lag_max=5, partitions=2),
        Lag(group="billing", topic="b", at=START, lag=7, lag_max=7, partitions=2),
    ]


def test_the_key_of_a_message_says_what_it_is_about() -> None:
    whole, part = window_of(row(), 4), window_of(row(partition=3), 4)
    [lag] = lags_of("billing", [("orders", 3)], START)
    assert [message_of(each)[0] for each in (whole, part, lag)] == [
        "traffic/orders/2026-11-16T09:30:00Z", "traffic/orders/3/2026-11-16T09:30:00Z", "lag/billing/orders",
    ]  # fmt: skip
    assert msgspec.json.decode(message_of(whole)[1])["metric"] == "traffic"
    assert msgspec.json.decode(message_of(lag)[1]) == {
        "metric": "lag", "group": "billing", "topic": "orders", "at": "2026-11-16T09:30:00Z", "lag": 3, "lag_max": 3,
        "partitions": 1,
    }  # fmt: skip
    assert "skew" not in msgspec.json.decode(message_of(part)[1])


@pytest.mark.parametrize(("changes", "option"), [({"window_ms": 10}, "window"), ({"keys": 0}, "keys")])
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], option: str) -> None:
    from runnel.pipelines.jobs.traffic.job import TrafficConf

    with pytest.raises(BadOption, match=f"option {option}="):
        TrafficConf(StreamConf("checkpoint"), **changes)


# --- tables
def table(path: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    from deltalake import DeltaTable

    found: list[dict[str, Any]] = pa.table(DeltaTable(str(path)).to_pyarrow_table()).to_pylist()
    return found


def merged(path: Path, batch: int, *windows: Window) -> bool:
    pytest.importorskip("deltalake")
    from runnel.pipelines.jobs.traffic.table import merge_windows

    return merge_windows(str(path), "query", batch, [row_of(each) for each in windows])


def test_a_window_has_one_row_and_a_batch_counts_once(tmp_path: Path) -> None:
    early, late = window_of(row(), 4), window_of(row(messages=130), 4)
    part = window_of(row(partition=2, messages=30), 4)
    assert merged(tmp_path, 0, early, part)
    assert not merged(tmp_path, 0, late)  # the batch is in it
    assert [each["messages"] for each in table(tmp_path) if each["partition"] == ALL] == [120]
    assert merged(tmp_path, 1, late)
    found = {each["partition"]: each for each in table(tmp_path)}
    assert {place: each["messages"] for place, each in found.items()} == {ALL: 130, 2: 30}
    assert (found[ALL]["latency_p95_ms"], found[ALL]["date"]) == (9, date(2026, 11, 16))
    assert found[ALL]["hot_keys"][0] == {"key": "hot", "messages": 60, "share": 0.4615}
    assert found[2]["skew"] is None


def test_samples_of_lag_are_added_and_a_batch_counts_once(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    from runnel.pipelines.jobs.traffic.table import add_lags

    rows = [row_of(each) for each in lags_of("billing", [("orders", 3)], START)]
    done = [add_lags(str(tmp_path), query, batch, rows) for query, batch in [("q", 4), ("q", 4), ("q", 5), ("", 0)]]
    assert done == [True, False, True, True]
    assert [each["lag"] for each in table(tmp_path)] == [3, 3, 3]


def test_tables_are_kept_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deltalake")
    from runnel.pipelines.jobs.traffic import table as traffic_table

    monkeypatch.setattr(traffic_table, "CLEAN_EVERY", 4)
    monkeypatch.setattr(traffic_table, "KEPT_HOURS", 0)
    for batch in range(4):
        merged(tmp_path, batch, window_of(row(messages=batch + 1), 4))
    assert [each["messages"] for each in table(tmp_path)] == [4]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


# --- the cluster
@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Gateway]:
    gateway = Gateway((broker.kafka,))
    yield gateway
    gateway.close()


def test_the_topic_of_records_is_compacted_and_ages(cluster: Gateway) -> None:
    for _ in range(2):  # the second time it is there
        cluster.run(make_output(cluster.cluster, "measured"))
    entries = cluster.run(Admin(cluster.cluster).configs(["measured"], ["cleanup.policy", "retention.ms"]))["measured"]
    settings = {entry.name: entry.value or "" for entry in entries}
    assert set(settings["cleanup.policy"].split(",")) == {"compact", "delete"}
    assert settings["retention.ms"] == "604800000"
    assert cluster.run(partition_counts(cluster.cluster, ["measured", "not-there"])) == {"measured": 1}


def test_lags_of_all_groups_are_sampled(cluster: Gateway, broker: BrokerProcess) -> None:
    with connect(broker.kafka) as runnel:
        runnel.queue("lagging").create(partitions=2)
        for number in range(6):
            runnel.send("lagging", str(number), partition=number % 2)
        with runnel.group("laggards", "lagging") as group:
            read = 0
            while read < 6:
                read += len(group.poll())
            group.commit()
        for _ in range(3):
            runnel.send("lagging", "more", partition=1)
    [lag] = [each for each in cluster.run(sample_lags(cluster.cluster)) if each.group == "laggards"]
    assert (lag.topic, lag.lag, lag.lag_max, lag.partitions) == ("lagging", 3, 3, 2)
