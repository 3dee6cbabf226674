"""`runnel txn`, and transactions from the command line, on a real broker."""

import json

import pytest
from tests.cli.calls import Call, process
from tests.client.talk import talk

from runnel.client.cluster import Cluster
from runnel.client.producer import Producer, ProducerSettings
from runnel.testing.process import BrokerProcess


def leave_open(address: str, topic: str, transactional_id: str) -> None:
    """Begin a transaction, write one message, and go away."""

    async def work(cluster: Cluster) -> None:
        producer = Producer(cluster, ProducerSettings(transactional_id=transactional_id, linger_ms=0))
        await producer.begin()
        await (await producer.send(topic, b"never", partition=0))

    talk(address, work)


@pytest.fixture
def stuck(call: Call, broker: BrokerProcess, name: str) -> str:
    """A transaction that nobody will end; its topic and its id have the same name, and the topic one more message."""
    call("topic", "create", name, "-p", "1")
    leave_open(broker.kafka, name, name)
    call("produce", name, "-m", "behind")
    return name


def test_list_and_describe(call: Call, stuck: str) -> None:
    assert [stuck, "Ongoing"] in [row[:2] for row in call("txn", "ls").rows]
    rows = [json.loads(line) for line in call("txn", "ls", "--json", "--state", "Ongoing").out.splitlines()]
    (row,) = [row for row in rows if row["id"] == stuck]
    assert sorted(row) == ["coordinator", "id", "producer_id", "state"]
    out = call("txn", "describe", stuck)
    assert out.out.startswith(f"Transactional id {stuck}  state Ongoing  open since ")
    assert [stuck, "0", "0"] in out.rows
    described = call("txn", "describe", stuck, "--json").json
    assert described["partitions"] == [{"topic": stuck, "partition": 0, "first_offset": 0}]
    assert (described["producer_id"], described["timeout_ms"]) == (row["producer_id"], 60_000)


def test_filters(call: Call, stuck: str) -> None:
    producer = call("txn", "describe", stuck, "--json").json["producer_id"]
    assert [r[0] for r in call("txn", "ls", "--producer-id", str(producer)).rows[1:]] == [stuck]
    assert stuck not in call("txn", "ls", "--open-for", "3600").out
    assert stuck in call("txn", "ls", "--open-for", "0").out
    assert stuck not in call("txn", "ls", "--state", "CompleteCommit").out


def test_abort(call: Call, stuck: str) -> None:
    assert call("consume", stuck, "-e").out == ""
    assert call("consume", stuck, "-e", "--isolation", "uncommitted").out == "never\nbehind\n"
    plan = call("txn", "abort", stuck, "--dry-run")
    assert [stuck, "0", "0"] in plan.rows
    assert "Nothing was changed" in plan.out
    assert "Its producer is fenced" in call("txn", "abort", stuck, code=2).err
    assert call("txn", "describe", stuck, "--json").json["state"] == "Ongoing"
    assert call("txn", "abort", stuck, "-y").out.endswith(f"aborted the transaction of {stuck}\n")
    assert call("txn", "describe", stuck, "--json").json["state"] != "Ongoing"
    assert call("consume", stuck, "-e").out == "behind\n"
    again = call("txn", "abort", stuck, "-y")
    assert "has no open transaction" in again.err
    assert again.out == ""


def test_abort_in_json(call: Call, stuck: str) -> None:
    assert call("txn", "abort", stuck, "-n", "--json").json["aborted"] is False
    assert call("txn", "abort", stuck, "-y", "--json").json["aborted"] is True
    assert call("txn", "abort", stuck, "-y", "--json").json["aborted"] is False


def test_a_transaction_that_is_known_is_not_torn(call: Call, stuck: str) -> None:
    """By partition only if no coordinator knows it: else it would be aborted here, and perhaps committed elsewhere."""
    producer = str(call("txn", "describe", stuck, "--json").json["producer_id"])
    plan = call("txn", "abort", "--partition", f"{stuck}/0", "--producer-id", producer, "-n")
    assert [f"{stuck}/0", producer] in [row[:2] for row in plan.rows]
    refused = call("txn", "abort", "--partition", f"{stuck}/0", "-y", code=1)
    assert f"does not hang: it is that of transactional id '{stuck}'" in refused.err
    assert call("txn", "describe", stuck, "--json").json["state"] == "Ongoing"


def test_nothing_to_abort_in_a_partition(call: Call, name: str) -> None:
    call("topic", "create", name, "-p", "1")
    assert "no transaction is open" in call("txn", "abort", "--partition", f"{name}/0", "-y", code=1).err


def test_an_id_that_does_not_exist(call: Call, name: str) -> None:
    assert "TRANSACTIONAL_ID_NOT_FOUND" in call("txn", "describe", name, code=1).err
    refused = call("txn", "abort", name, "-y", code=1).err
    assert "can't find transactional id" in refused
    assert "TRANSACTIONAL_ID_NOT_FOUND" in refused
    assert name not in call("txn", "ls").out


@pytest.mark.parametrize("arguments", [[], ["x", "--partition", "t/0"], ["x", "--producer-id", "1"]])
def test_what_to_abort_must_be_clear(call: Call, arguments: list[str]) -> None:
    assert "name transactional ids, or a partition" in call("txn", "abort", *arguments, code=2).err


def test_produce_in_a_transaction(call: Call, broker: BrokerProcess, name: str) -> None:
    call("topic", "create", name, "-p", "1", "-c", "max.message.bytes=2000")
    sent = process(broker.kafka, "produce", name, "--transaction", "-v", stdin=b"1\n2\n3\n")
    assert sent.stdout.decode().split() == [f"{name}/0@{n}" for n in range(3)]
    failed = process(
        broker.kafka, "produce", name, "--transactional-id", name, "-v", stdin=b"4\n" + b"x" * 5_000 + b"\n5\n", code=1
    )
    assert b"MESSAGE_TOO_LARGE" in failed.stderr
    assert failed.stdout == b""
    call("produce", name, "--transactional-id", name, "-m", "6")
    assert call("consume", name, "-e").out == "1\n2\n3\n6\n"
    assert "needs --acks all" in call("produce", name, "--transaction", "-a", "1", "-m", "x", code=2).err
