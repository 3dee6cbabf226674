"""`runnel sink`, and what `runnel txn` says of transactions that sinks hold, on a real broker."""

import json

import pytest
from tests.cli.calls import Call
from tests.client.talk import talk

from runnel.client.calls import call as ask
from runnel.client.cluster import Cluster
from runnel.client.sinks import Sinks
from runnel.model.sinks import TXN_HOLD, Handle, Hold
from runnel.testing.process import BrokerProcess


@pytest.fixture
def orphan(call: Call, broker: BrokerProcess, name: str) -> str:
    """A sink whose driver went away between two batches: one is published, of the other an attempt is open."""
    call("topic", "create", name, "-p", "1")

    async def work(cluster: Cluster) -> None:
        sinks = Sinks(cluster)
        for batch in range(2):
            async with sinks.writing(await sinks.begin(name, batch, 0, 5, query="q1")) as producer:
                await producer.send(name, b"%d" % batch, partition=0)
                handle = await producer.hand_over()
            assert handle is not None
            if batch == 0:
                await sinks.commit(name, batch, [handle])

    talk(broker.kafka, work)
    return name


def test_list_and_describe(call: Call, orphan: str) -> None:
    assert [orphan, "idle", "0", "1"] in [row[:4] for row in call("sink", "ls").rows]
    assert "There are no such sinks." in call("sink", "ls", "no-such-").err
    (row,) = [json.loads(line) for line in call("sink", "ls", orphan, "--json").out.splitlines()]
    assert (row["sink"], row["last_batch"], row["attempts"]) == (orphan, 0, 1)
    out = call("sink", "describe", orphan)
    assert out.out.startswith(f"Sink {orphan}  idle  since ")
    assert "last batch 0  query q1" in out.out
    assert ["1", "0", "5"] in [row[1:4] for row in out.rows]
    (attempt,) = call("sink", "describe", orphan, "--json").json["attempts"]
    assert (attempt["batch"], attempt["partition"], attempt["attempt"], attempt["chosen"]) == (1, 0, 5, False)


def test_forget(call: Call, orphan: str) -> None:
    call("produce", orphan, "-m", "behind")
    assert call("consume", orphan, "-e").out == "0\n"
    assert "Nothing was changed" in call("sink", "forget", orphan, "-n").out
    assert "publishes it again" in call("sink", "forget", orphan, code=2).err
    assert call("sink", "forget", orphan, "-y").out.endswith(f"forgot {orphan}; 1 open attempt ended\n")
    assert call("consume", orphan, "-e").out == "0\nbehind\n"
    assert "there is no sink" in call("sink", "describe", orphan, code=1).err
    assert "there is no sink" in call("sink", "forget", orphan, "-y", code=1).err


def test_forget_in_json(call: Call, orphan: str) -> None:
    assert call("sink", "forget", orphan, "-n", "--json").json["forgotten"] is False
    assert call("sink", "forget", orphan, "-y", "--json").json["forgotten"] is True


def test_what_a_sink_holds_is_aborted_by_force_alone(call: Call, broker: BrokerProcess, orphan: str) -> None:
    (attempt,) = call("sink", "describe", orphan, "--json").json["attempts"]
    name = attempt["transactional_id"]
    assert call("txn", "describe", name, "--json").json["holder"] is None
    handle = Handle(name, attempt["producer_id"], attempt["epoch"])
    talk(broker.kafka, lambda cluster: ask(cluster, TXN_HOLD, Hold(orphan, handle)))
    assert call("txn", "describe", name, "--json").json["holder"] == orphan
    assert f"held by sink {orphan}" in call("txn", "describe", name).out
    refused = call("txn", "abort", name, "-y", code=1)
    assert f"runnel sink forget {orphan}" in refused.err
    assert call("txn", "describe", name, "--json").json["state"] == "Ongoing"
    assert "aborted the transaction" in call("txn", "abort", name, "-y", "--force").out
    assert call("txn", "describe", name, "--json").json["state"] != "Ongoing"


def test_what_a_sink_holds_ends_with_the_sink(call: Call, broker: BrokerProcess, orphan: str) -> None:
    """Though it was never chosen: as if the sink had lost its state."""
    (attempt,) = call("sink", "describe", orphan, "--json").json["attempts"]
    handle = Handle(attempt["transactional_id"], attempt["producer_id"], attempt["epoch"])
    talk(broker.kafka, lambda cluster: ask(cluster, TXN_HOLD, Hold(orphan, handle)))
    call("sink", "forget", orphan, "-y")
    assert call("txn", "describe", handle.transactional_id, "--json").json["state"] == "CompleteAbort"
