"""A letter that a repair sent away is dead no more, for everybody; and what tasks make of letters, without Spark."""

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from runnel.client.admin import NewTopic
from runnel.client.queue import DeadLetter
from runnel.client.sinks import Sinks
from runnel.client.sync import Queue, Runnel, connect
from runnel.model import headers as h
from runnel.model.errors import RunnelError
from runnel.model.sinks import Handle
from runnel.pipelines.conf import StreamConf
from runnel.pipelines.connector.gateway import Gateway
from runnel.pipelines.errors import BadOption, NothingThere
from runnel.pipelines.jobs.deadletters.cluster import Marker, away, dead_topic, make_topics, settled, target_of
from runnel.pipelines.jobs.deadletters.letter import Letter
from runnel.pipelines.jobs.deadletters.repair import Account, Place, Rules, Target
from runnel.testing.process import BrokerProcess

pa = pytest.importorskip("pyarrow")
names = (f"repaired-{number}" for number in count())


@pytest.fixture
def runnel(broker: BrokerProcess) -> Iterator[Runnel]:
    with connect(broker.kafka) as connected:
        yield connected


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Gateway]:
    gateway = Gateway((broker.kafka,))
    yield gateway
    gateway.close()


def dead(runnel: Runnel, values: list[str], **settings: Any) -> Queue:
    """A queue that gave these messages up."""
    queue = runnel.queue(next(names))
    queue.create(partitions=2, **settings)
    for value in values:
        queue.send(value, key=value)
        [message] = queue.receive(wait=20)
        message.reject(f"bad {value}")
    wait_for_letters(queue, len(values))
    return queue


def wait_for_letters(queue: Queue, number: int) -> list[DeadLetter]:
    while len(found := queue.dead_letters()) < number:
        pass  # a letter is there a moment after its message was rejected
    return found


def account(queue: Queue, offset: int, outcome: str, name: str = "") -> Account:
    return Account(name or queue.name, Place(f"{queue.name}.dead", 0, offset), outcome, 0)


def test_what_was_sent_away_is_not_listed_nor_sent_back_again(runnel: Runnel, cluster: Gateway) -> None:
    queue = dead(runnel, ["a", "b", "c", "d"])
    accounts = f"{queue.name}.repairs"
    cluster.run(make_topics(cluster.cluster, [NewTopic(accounts, 1)]))
    told = [
        account(queue, 0, "repaired"), account(queue, 1, "left"), account(queue, 2, "parked"),
        account(queue, 3, "repaired", "another"),
    ]  # fmt: skip
    for each in told:
        runnel.send(accounts, msgspec.json.encode(each))
    runnel.send(accounts, "no account at all")
    marker = Marker(cluster.cluster, queue.name, f"{queue.name}.dead", accounts)
    assert cluster.run(marker.catch_up()) == {"repaired": 1, "left": 1, "parked": 1}
    assert cluster.run(marker.catch_up()) == {}  # how far it is, is kept
    assert [letter.offset for letter in queue.dead_letters()] == [1, 3]
    assert cluster.run(away(cluster.cluster, queue.name, 0, 0, 3)) == {0, 2}
    assert queue.redrive().moved == 2
    assert cluster.run(away(cluster.cluster, queue.name, 0, 1, 9)) == {1, 2, 3}


def test_the_topic_of_dead_letters_is_the_queues_setting(runnel: Runnel, cluster: Gateway) -> None:
    name = next(names)
    runnel.queue(name).create(dead_letter_topic="graves")
    assert cluster.run(dead_topic(cluster.cluster, name)) == "graves"
    runnel.queue(name).alter(dead_letter_topic="")
    with pytest.raises(NothingThere, match=r"set dead\.letter\.topic"):
        cluster.run(dead_topic(cluster.cluster, name))


def test_what_a_topic_takes(cluster: Gateway) -> None:
    name = next(names)
    cluster.run(make_topics(cluster.cluster, [NewTopic(name, 3, config={"max.message.bytes": "5000"})]))
    cluster.run(make_topics(cluster.cluster, [NewTopic(name, 9)]))  # it is there: nothing changes
    assert cluster.run(target_of(cluster.cluster, name)) == Target(3, 5000)
    assert cluster.run(target_of(cluster.cluster, "not-there")) is None


# --- tasks
def records(letters: list[DeadLetter]) -> Any:
    """Dead letters as Spark hands them to a task."""
    from runnel.pipelines.jobs.deadletters.tasks import HEADERS

    columns = {
        "topic": pa.array([each.topic for each in letters]),
        "partition": pa.array([each.partition for each in letters], pa.int32()),
        "offset": pa.array([each.offset for each in letters], pa.int64()),
        "key": pa.array([each.key for each in letters], pa.binary()),
        "value": pa.array([each.value for each in letters], pa.binary()),
        "timestamp": pa.array([each.timestamp_ms * 1000 for each in letters], pa.timestamp("us", "UTC")),
        "headers": pa.array([[{"key": k, "value": v} for k, v in each.headers.items()] for each in letters], HEADERS),
    }
    return pa.RecordBatch.from_pydict(columns)


def fix(letter: Letter) -> Letter | None:
    if letter.text == "c":
        raise ValueError("c is beyond repair")
    return letter.with_value("good") if letter.text == "a" else None


def repairing(broker: BrokerProcess, queue: Queue) -> Any:
    from runnel.pipelines.jobs.deadletters.tasks import Reading, Repairing

    return Repairing(Reading((broker.kafka,), queue.name), Rules(queue.name, parking="p"), fix, f"{queue.name}.repairs")


def test_a_task_turns_letters_into_messages_and_accounts(broker: BrokerProcess, runnel: Runnel) -> None:
    queue = dead(runnel, ["a", "b", "c", "d"])
    letters = queue.dead_letters()
    queue.redrive(only={0: 3})
    [out] = repairing(broker, queue)(iter([records(letters)]))
    rows = out.to_pylist()
    told = [msgspec.json.decode(row["value"], type=Account) for row in rows if row["topic"] == f"{queue.name}.repairs"]
    assert [each.outcome for each in told] == ["repaired", "left", "failed", "gone"]
    assert told[2].why.startswith("ValueError: c is beyond repair (test_deadletters_cluster.py:")
    [back] = [row for row in rows if row["topic"] == queue.name]
    assert (back["partition"], back["key"], back["value"]) == (letters[0].origin_partition, b"a", b"good")
    assert {"key": h.REPAIRS, "value": b"1"} in back["headers"]


def test_letters_of_another_queue_are_not_touched(broker: BrokerProcess, runnel: Runnel) -> None:
    other = dead(runnel, ["a"])
    queue = dead(runnel, ["b"])
    [out] = repairing(broker, queue)(iter([records(other.dead_letters())]))
    assert out.num_rows == 0


def test_a_report_tells_what_is_still_dead_with_what_differs_taken_out(broker: BrokerProcess, runnel: Runnel) -> None:
    from runnel.pipelines.jobs.deadletters.tasks import Reading, Telling

    queue = dead(runnel, ["a1", "a22", "x"])
    letters = queue.dead_letters()
    queue.redrive(only={0: 2})
    reading = Reading((broker.kafka,), queue.name)
    [out] = Telling(reading, letters[0].timestamp_ms + 90_000, "error")(iter([records(letters)]))
    assert [(row["outcome"], row["reason"], row["age"], row["place"]) for row in out.to_pylist()] == [
        ("dead", "bad a#", "< 1h", "0/0"), ("dead", "bad a#", "< 1h", "0/1"),
    ]  # fmt: skip
    dry = Telling(reading, 0, "error", repairing(broker, queue))
    [out] = dry(iter([records(letters)]))
    assert [row["outcome"] for row in out.to_pylist()] == ["left", "left", "gone"]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("timed out after 3012 ms", "timed out after # ms"),
        ("no user 1b4e28ba-2fa1-11d2-883f-0016d3cca427", "no user #"),
        ("at 0x7fc3af66e5c0", "at #"),
        ("y" * 300, "y" * 200),
    ],
)
def test_numbers_and_ids_do_not_tell_reasons_apart(text: str, same: str) -> None:
    from runnel.pipelines.jobs.deadletters.tasks import alike

    assert alike(text) == same


def test_a_pace_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from runnel.pipelines.jobs.deadletters import tasks

    now = 7.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(tasks, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    pace = tasks.Pace(100)
    for _ in range(10):
        pace.wait(1)
    assert now == pytest.approx(7.1)
    now += 5.0  # whoever was slow need not wait
    pace.wait(1)
    assert now == pytest.approx(12.1)
    tasks.Pace(0).wait(1_000_000)
    assert now == pytest.approx(12.1)


def test_a_sink_that_decided_nothing_is_not_waited_for(cluster: Gateway) -> None:
    """Its driver is gone, and nobody else publishes what its attempts wrote."""

    async def begun() -> Handle | None:
        return (await Sinks(cluster.cluster).begin("deadletters-idle-1", 0, 0, 0)).handle

    assert cluster.run(begun()) is not None
    cluster.run(settled(cluster.cluster, "deadletters-idle-"))


def test_what_is_wrong_is_said_before_spark_is_started(broker: BrokerProcess) -> None:
    from runnel.pipelines.jobs.deadletters.job import DeadLettersConf

    stream = StreamConf("checkpoint", broker.kafka)
    with pytest.raises(RunnelError, match="no-such-queue"):
        DeadLettersConf(stream, "no-such-queue").check()
    with pytest.raises(BadOption, match="has no function"):
        DeadLettersConf(stream, "no-such-queue", repair="json:none").check()


@pytest.mark.parametrize("changes", [{"rounds_max": 0}, {"rate_max": -1}, {"accounts": ""}, {"batch_max": 0}])
def test_what_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    from runnel.pipelines.jobs.deadletters.job import DeadLettersConf

    with pytest.raises(BadOption):
        DeadLettersConf(StreamConf("checkpoint"), "jobs", **changes)
