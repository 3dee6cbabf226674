"""`runnel bench`: that it measures, not how fast it is."""

import pytest
from tests.cli.calls import Call

from runnel.cli.bench_run import encoded_batch, quantiles
from runnel.record import batch as record_batch
from runnel.record import records
from runnel.record.compression import Compression


def test_what_is_produced_is_consumed(call: Call, name: str) -> None:
    made = call("bench", "produce", name, "-n", "1005", "-s", "100", "--batch", "10k", "--json").json
    assert (made["messages"], made["message_bytes"]) == (1005, 100)
    assert set(made["ack_ms"]) == {"p50", "p99", "p99.9", "max"}
    read = call("bench", "consume", name, "--json").json
    assert (read["messages"], read["decoded"]) == (made["messages"], False)
    assert call("bench", "consume", name, "--decode", "--json").json["messages"] == made["messages"]


@pytest.mark.parametrize("options", [[], ["--rate", "500"], ["-a", "1"]])
def test_latency(call: Call, name: str, options: list[str]) -> None:
    result = call("bench", "latency", name, "-n", "20", *options, "--json").json
    assert result["messages"] == 20
    assert result["arrival_ms"]["p50"] > 0
    assert result["ack_ms"]["max"] > 0


def test_for_people(call: Call, name: str) -> None:
    out = call("bench", "produce", name, "-n", "100").out
    assert "messages/s" in out
    assert "p99.9" in out


def test_quantiles() -> None:
    assert quantiles([n / 1000 for n in range(1, 1001)]) == {"p50": 501, "p99": 991, "p99.9": 1000, "max": 1000}
    assert quantiles([]) == {}


@pytest.mark.parametrize("codec", list(Compression))
def test_the_batches_are_whole(codec: Compression) -> None:
    batch = encoded_batch(10, 100, codec, 1000)
    assert record_batch.check_produced(batch).count == 10
    assert {len(r.value or b"") for r in records.decode(batch)} == {100}
