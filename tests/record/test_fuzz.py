"""Hostile batches: whatever arrives, reading gives records or says what is wrong, in bounded memory."""

import random
import resource
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.helpers.hostile import EXECS, mutated

from runnel.model.errors import RunnelError
from runnel.record import batch, control, records
from runnel.record.batch import HEADER_BYTES
from runnel.record.compression import Compression
from runnel.record.records import Record

GROWTH_KIB_MAX = 64 * 1024
READERS: tuple[Callable[[bytes], Any], ...] = (
    batch.check_produced,
    lambda raw: list(batch.headers(raw)),
    records.decode,
    records.keys,
    records.spans,
    records.offset_of_max_timestamp,
    lambda raw: records.first_offset_at_or_after(raw, 1_000),
    control.marker_in,
)


def some_batch(chance: random.Random, codec: Compression) -> bytes:
    history = [
        Record(
            offset,
            chance.randrange(-1, 2**40),
            chance.choice([None, b"", chance.randbytes(chance.randrange(40))]),
            chance.choice([None, b"", b"a" * chance.randrange(400)]),
            tuple((f"h{number}", chance.choice([None, b"v"])) for number in range(chance.randrange(3))),
        )
        for offset in range(chance.randrange(1, 9))
    ]
    return bytes(records.encode(history, compression=codec))


def good(chance: random.Random, codec: Compression) -> bytes:
    if codec is Compression.NONE and chance.random() < 0.2:
        return bytes(control.marker(5, 1, commit=chance.random() < 0.5, coordinator_epoch=3, timestamp_ms=7))
    return some_batch(chance, codec)


def with_right_checksum(raw: bytes) -> bytes:
    """What the checksum would have caught gets past it: half of what is tried, so that all is read to its end."""
    if len(raw) < HEADER_BYTES:
        return raw
    return batch.assemble(batch.read_header(raw), raw[HEADER_BYTES:])


@pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name)
def test_mutated_batches_are_read_or_refused(codec: Compression) -> None:
    chance = random.Random(f"batches {codec}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    whole = b""
    for number in range(EXECS // len(Compression)):
        if number % 50 == 0:
            whole = good(chance, codec)
        hurt = bytes(mutated(whole, chance, chance.choice([0, 12, HEADER_BYTES])))
        reader = chance.choice(READERS)
        with suppress(RunnelError):
            reader(with_right_checksum(hurt) if chance.random() < 0.5 else hurt)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB_MAX
