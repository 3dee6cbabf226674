"""What `df.write` and `df.writeStream` to topics are told, as values.

Rule 1: options are read once, in the driver, before any job: tasks get this value.
Rule 2: what can't be kept is refused: fewer acknowledgements than exactly once needs, a batch's number without a sink.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from runnel.client.producer_settings import ACKS_ALL, ProducerSettings
from runnel.model.limits import KIB, MIB
from runnel.pipelines.connector.given import Given
from runnel.pipelines.errors import BadOption
from runnel.record.compression import Compression

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
NAMES = (
    "topic", "semantics", "sinkId", "batchId", "acks", "compression", "batchBytes", "bufferBytes",
    "deliveryTimeout", "transactionTimeout",
)  # fmt: skip

ACKS = {"all": ACKS_ALL, "-1": ACKS_ALL, "1": 1, "0": 0}
BATCH_BYTES = 512 * KIB  # half of what a topic takes unless it is told otherwise
BUFFER_BYTES = 32 * MIB  # in each Python worker
SINK_ID_CHARS_MAX = 200


@dataclass(frozen=True)
class WriteOptions:
    """All that a writer is told."""

    brokers: tuple[str, ...]
    topic: str | None  # of all rows; None: the column says
    exactly_once: bool
    sink_id: str  # empty: a stream's query, or a name of its own for every batch that is written
    batch_id: int | None  # None: the micro-batch that is under way
    producer: ProducerSettings

    @classmethod
    def batch(cls, options: Mapping[str, str]) -> Self:
        given = Given(options, NAMES)
        found = cls._of(given)
        if "batchId" in given and not found.sink_id:
            raise BadOption("batchId", given.text("batchId"), "it counts the batches of a sink: name it with sinkId")
        return found

    @classmethod
    def streaming(cls, options: Mapping[str, str]) -> Self:
        given = Given(options, NAMES + STREAM_ONLY)
        if "batchId" in given:
            raise BadOption("batchId", given.text("batchId"), "Spark numbers the batches of a stream: leave it out")
        return cls._of(given)

    @classmethod
    def _of(cls, given: Given) -> Self:
        exactly_once = given.one_of("semantics", (EXACTLY_ONCE, AT_LEAST_ONCE)) == EXACTLY_ONCE
        if not exactly_once and "sinkId" in given:
            raise BadOption("sinkId", given.text("sinkId"), f"it goes with semantics={EXACTLY_ONCE}")
        return cls(
            brokers=given.brokers(),
            topic=given.text("topic") or None,
            exactly_once=exactly_once,
            sink_id=_sink_id(given),
            batch_id=_batch_id(given),
            producer=_producer(given, exactly_once),
        )


STREAM_ONLY = ("path", "checkpointLocation", "queryName")  # Spark's own, which it hands over with ours


def _sink_id(given: Given) -> str:
    name = given.text("sinkId")
    if "sinkId" in given and not 0 < len(name) <= SINK_ID_CHARS_MAX:
        raise BadOption("sinkId", name, f"use 1 to {SINK_ID_CHARS_MAX} characters, the same in every run")
    return name


def _batch_id(given: Given) -> int | None:
    if "batchId" not in given:
        return None
    text = given.text("batchId")
    if not text.isdecimal() or int(text) >= 2**63:
        raise BadOption("batchId", text, "use a whole number from 0 on, higher than that of the batch before")
    return int(text)


def _producer(given: Given, exactly_once: bool) -> ProducerSettings:
    acks = ACKS[given.one_of("acks", tuple(ACKS))]
    if exactly_once and acks != ACKS_ALL:
        raise BadOption("acks", given.text("acks"), f"use all, or semantics={AT_LEAST_ONCE}")
    batch_bytes = given.size("batchBytes") or BATCH_BYTES
    return ProducerSettings(
        acks=acks,
        idempotent=acks == ACKS_ALL,
        compression=_compression(given),
        batch_bytes=batch_bytes,
        buffer_bytes_max=max(given.size("bufferBytes") or BUFFER_BYTES, batch_bytes),
        delivery_timeout_ms=given.span_ms("deliveryTimeout", "2m"),
        transaction_timeout_ms=given.span_ms("transactionTimeout", "15m"),
        linger_ms=0,
    )


def _compression(given: Given) -> Compression:
    names = tuple(codec.name.lower() for codec in Compression)
    return Compression[given.one_of("compression", names).upper()]
