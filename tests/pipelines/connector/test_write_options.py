"""What writers are told."""

import pickle

import pytest

from runnel.client.producer_settings import check_settings
from runnel.pipelines.connector.writing.write_options import WriteOptions
from runnel.pipelines.errors import BadOption, UnknownOption
from runnel.record.compression import Compression


def test_nothing_said_is_exactly_once() -> None:
    options = WriteOptions.streaming({})
    assert options.exactly_once
    assert options.topic is None
    assert options.sink_id == ""
    assert options.producer.idempotent
    check_settings(options.producer)
    assert pickle.loads(pickle.dumps(options)) == options


def test_all_that_can_be_said() -> None:
    options = WriteOptions.batch(
        {
            "kafka.bootstrap.servers": "a:1,b:2", "TOPIC": "t", "sinkid": "s", "batchId": "7", "compression": "zstd",
            "batchBytes": "64k", "bufferBytes": "1m", "deliveryTimeout": "10s", "transactionTimeout": "2m",
        }
    )  # fmt: skip
    assert (options.brokers, options.topic, options.sink_id, options.batch_id) == (("a:1", "b:2"), "t", "s", 7)
    settings = options.producer
    assert (settings.compression, settings.batch_bytes, settings.buffer_bytes_max) == (Compression.ZSTD, 65_536, 2**20)
    assert (settings.delivery_timeout_ms, settings.transaction_timeout_ms) == (10_000, 120_000)


def test_fewer_acknowledgements_go_with_at_least_once() -> None:
    options = WriteOptions.batch({"semantics": "at-least-once", "acks": "1"})
    assert (options.exactly_once, options.producer.acks, options.producer.idempotent) == (False, 1, False)
    check_settings(options.producer)
    with pytest.raises(BadOption, match="acks"):
        WriteOptions.batch({"acks": "1"})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batchId": "3"}, "name it with sinkId"),
        ({"sinkId": "s", "batchId": "-1"}, "whole number"),
        ({"sinkId": "s", "batchId": str(2**63)}, "whole number"),
        ({"sinkId": " "}, "characters"),
        ({"semantics": "at-least-once", "sinkId": "s"}, "goes with semantics"),
        ({"semantics": "at-most-once"}, "use exactly-once or at-least-once"),
        ({"compression": "brotli"}, "use none or gzip"),
    ],
)
def test_what_means_nothing_is_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(BadOption, match=told):
        WriteOptions.batch(options)


def test_a_stream_has_no_batch_number_of_its_own() -> None:
    with pytest.raises(BadOption, match="Spark numbers"):
        WriteOptions.streaming({"sinkId": "s", "batchId": "3"})


def test_what_nothing_listens_to_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownOption, match="did you mean 'compression'"):
        WriteOptions.batch({"compresion": "lz4"})
    with pytest.raises(UnknownOption, match="linger"):
        WriteOptions.batch({"linger": "5"})
