"""The repair of dead letters and the measuring of traffic, with Spark and a broker: each batch counts once."""

from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runnel.client.sync import Queue, QueueMessage, Runnel, connect
from runnel.pipelines.conf import StreamConf
from runnel.testing.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from runnel.pipelines.jobs.deadletters.job import DeadLettersConf

names = (f"jobs-{number}" for number in count())
FIXES = """
from runnel.pipelines.jobs.deadletters.letter import Park

def fix(letter):
    order = letter.json()
    if order["kind"] == "odd":
        return Park("odd")
    if order["kind"] == "leave":
        return None
    return letter.with_value({**order, "amount": 10 / order["divisor"]})
"""
CENTURY_MS = 36_500 * 86_400_000  # a window that no test runs out of
ORDERS = [
    {"id": 0, "kind": "fix", "divisor": 5},
    {"id": 1, "kind": "fix", "divisor": 0},
    {"id": 2, "kind": "leave"},
    {"id": 3, "kind": "odd"},
    {"id": 4, "kind": "fix", "divisor": 2},
]


@pytest.fixture
def runnel(broker: BrokerProcess) -> Iterator[Runnel]:
    with connect(broker.kafka) as connected:
        yield connected


def done(*queries: "StreamingQuery") -> None:
    for query in queries:
        assert query.awaitTermination(200), "the query did not end"


def messages(runnel: Runnel, topic: str, number: int) -> list[Any]:
    stream = runnel.stream(topic)
    return [next(stream) for _ in range(number)]


# --- dead letters
def rejected(queue: Queue, orders: list[dict[str, Any]], letters: int) -> None:
    """Send orders, and have the queue give them up."""
    for order in orders:
        queue.send(order, key=str(order["id"]))
    for _ in orders:
        [message] = queue.receive(wait=20)
        message.reject(f"no amount in order {message.json()['id']}")
    wait_for_letters(queue, letters)


def wait_for_letters(queue: Queue, number: int) -> None:
    while len(queue.dead_letters()) < number:
        pass  # a letter is there a moment after its message was rejected


def received(queue: Queue, number: int) -> list[QueueMessage]:
    """So many messages, leased for longer than any test takes."""
    found: list[QueueMessage] = []
    while len(found) < number:
        found += queue.receive(10, wait=20, lease=3600)
    return found


def conf_of(broker: BrokerProcess, folder: Path, queue: str, checkpoint: str = "one") -> "DeadLettersConf":
    from runnel.pipelines.jobs.deadletters.job import DeadLettersConf

    (folder / "fixes.py").write_text(FIXES)
    stream = StreamConf(str(folder / checkpoint), broker.kafka, once=True)
    return DeadLettersConf(stream, queue, repair=f"{folder}/fixes.py:fix", rounds_max=1)


def accounts(runnel: Runnel, queue: Queue, number: int) -> list[tuple[int, str, str]]:
    """What was told of letters: offset, outcome and why of each."""
    from runnel.pipelines.jobs.deadletters.repair import Account

    told = messages(runnel, f"{queue.name}.repairs", number)
    found = [msgspec.json.decode(each.value, type=Account) for each in told]
    return [(each.letter.offset or 0, each.outcome, each.why) for each in found]


def forget_last_commit(checkpoint: str) -> None:
    """As if the driver had died after the last batch was published, and before Spark had written that down."""
    newest = max(int(path.name) for path in Path(checkpoint, "commits").iterdir() if path.name.isdecimal())
    Path(checkpoint, "commits", str(newest)).unlink()


def test_letters_are_grouped_tried_repaired_and_sent_back_once(
    spark: "SparkSession", broker: BrokerProcess, runnel: Runnel, tmp_path: Path
) -> None:
    from runnel.pipelines.jobs.deadletters.job import report, run

    queue = runnel.queue(next(names))
    queue.create(partitions=3)
    rejected(queue, ORDERS, 5)
    letters = queue.dead_letters()
    origins = {letter.json()["id"]: letter.origin_partition for letter in letters}
    orders = {letter.offset: letter.json()["id"] for letter in letters}
    conf = conf_of(broker, tmp_path, queue.name)

    # --- a dry run tells what would become of them, and changes nothing
    told = {(group.outcome, group.why): group.letters for group in report(spark, conf)}
    assert {outcome: letters for (outcome, _), letters in told.items()} == {
        "repaired": 2, "failed": 1, "left": 1, "parked": 1,
    }  # fmt: skip
    assert len(queue.dead_letters()) == 5

    # --- a run sends them where they belong, and tells of each
    done(run(spark, conf))
    assert sorted(letter.json()["id"] for letter in queue.dead_letters()) == [1, 2]
    back = sorted(received(queue, 2), key=lambda message: message.json()["id"])
    assert [(each.json(), each.partition) for each in back] == [
        ({**ORDERS[0], "amount": 2.0}, origins[0]), ({**ORDERS[4], "amount": 5.0}, origins[4]),
    ]  # fmt: skip
    told_of = {orders[offset]: (outcome, why) for offset, outcome, why in accounts(runnel, queue, 5)}
    assert [told_of[order][0] for order in range(5)] == ["repaired", "failed", "left", "parked", "repaired"]
    assert told_of[1][1] == "ZeroDivisionError: division by zero (fixes.py:10 in fix)"
    assert [each.json()["id"] for each in messages(runnel, f"{queue.name}.parked", 1)] == [3]

    # --- a driver that died after publishing does not publish again; what dies again comes to the end of its rounds
    forget_last_commit(conf.stream.checkpoint)
    for message in back:
        message.reject("still no good")
    wait_for_letters(queue, 4)
    done(run(spark, conf))
    assert {each.json()["id"] for each in messages(runnel, f"{queue.name}.parked", 3)} == {3, 0, 4}
    assert [outcome for _, outcome, _ in accounts(runnel, queue, 7)[5:]] == ["parked", "parked"]

    # --- nor does one that begins anew, with another checkpoint: it looks at those that are dead
    outcomes: Counter[str] = Counter()
    done(run(spark, conf_of(broker, tmp_path, queue.name, "two"), outcomes))
    assert outcomes == {"gone": 5, "failed": 1, "left": 1}
    assert sorted(letter.json()["id"] for letter in queue.dead_letters()) == [1, 2]
    assert queue.receive(10) == []


# --- traffic
def test_traffic_is_told_in_a_topic_and_in_tables_once(
    spark: "SparkSession", broker: BrokerProcess, runnel: Runnel, tmp_path: Path
) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable

    from runnel.pipelines.jobs.traffic.job import TrafficConf, run

    topic, output = next(names), next(names)
    runnel.queue(topic).create(partitions=4)  # a topic with four partitions
    for number in range(20):
        runnel.send(topic, "x" * 10, key="hot" if number % 2 else f"key-{number}", partition=number % 2)
    with runnel.group(f"readers-of-{topic}", topic) as group:
        read = 0
        while read < 20:
            read += len(group.poll())
        group.commit()
    runnel.send(topic, b"y" * 90, partition=0)

    stream = StreamConf(str(tmp_path / "checkpoint"), broker.kafka, once=True)
    conf = TrafficConf(
        stream, topics=topic, output=output, table=str(tmp_path / "lake"), start="earliest", window_ms=CENTURY_MS
    )
    done(*run(spark, conf))
    forget_last_commit(stream.checkpoint_of("traffic"))
    runnel.send(topic, b"z", partition=3)
    done(*run(spark, conf))  # the first batch again, and then another

    found = records(runnel, output, topic)
    whole = [each for each in found if each["metric"] == "traffic" and "partition" not in each]
    assert [each["messages"] for each in whole] == [21, 22]  # the batch that was done again told nothing
    first = whole[0]
    assert (first["size_max"], first["partitions"], first["partitions_used"]) == (90, 4, 2)
    assert first["skew"] == pytest.approx(11 * 4 / 21, abs=0.001)
    assert first["hot_keys"][0] == {"key": "hot", "messages": 10, "share": 0.4762}
    assert first["timestamps"] == "create"
    lags = [each for each in found if each["metric"] == "lag" and each["group"] == f"readers-of-{topic}"]
    assert [each["lag"] for each in lags] == [1, 2]
    rows = pa.table(DeltaTable(str(tmp_path / "lake/windows")).to_pyarrow_table()).to_pylist()
    assert {row["partition"]: row["messages"] for row in rows} == {-1: 22, 0: 11, 1: 10, 3: 1}
    assert len(pa.table(DeltaTable(str(tmp_path / "lake/lags")).to_pyarrow_table()).to_pylist()) >= 2


def test_lags_are_sampled_for_as_long_as_the_job_runs(
    spark: "SparkSession", broker: BrokerProcess, runnel: Runnel, tmp_path: Path
) -> None:
    from runnel.pipelines.jobs.traffic.job import TrafficConf, run

    topic, output = next(names), next(names)
    runnel.queue(topic).create(partitions=1)
    runnel.send(topic, "read")
    with runnel.group(f"late-for-{topic}", topic) as group:
        while not group.poll():
            pass
        group.commit()
    runnel.send(topic, "not read")  # and nothing more: no window is ever told
    stream = StreamConf(str(tmp_path / "checkpoint"), broker.kafka, every_ms=500)
    queries = run(spark, TrafficConf(stream, topics=topic, output=output))
    assert [query.name for query in queries] == ["traffic", "lag"]
    key = f"lag/late-for-{topic}/{topic}".encode()
    samples = (message.json() for message in runnel.stream(output) if message.key == key)
    first, second = next(samples), next(samples)
    assert (first["lag"], second["lag"]) == (1, 1)
    assert first["at"] < second["at"]
    assert [str(query.exception())[:500] for query in queries] == ["None", "None"]


def records(runnel: Runnel, output: str, topic: str) -> list[dict[str, Any]]:
    """What is told of a topic, up to a message that is sent now."""
    runnel.send(output, {"metric": "end"}, key="end")
    found: list[dict[str, Any]] = []
    for message in runnel.stream(output):
        record = message.json()
        if record["metric"] == "end":
            return found
        if record["topic"] == topic:
            found.append(record)
    raise AssertionError("a stream never ends")
