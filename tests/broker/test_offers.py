"""Every offset is offered: as a message, as part of a batch, or as one that has none."""

from runnel.broker.messages import Stretch
from runnel.broker.offers import Rules, offers_of, whole_offers
from runnel.log.log import AbortedTransaction
from runnel.model import headers as h
from runnel.queues.values import Offered, Span
from runnel.record import control, records
from runnel.record.batch import assemble, patch, read_header
from runnel.record.compression import Compression
from runnel.record.records import Record
from runnel.replica.unreadable import Unreadable

UNREADABLE = Unreadable("t-0")


def record(offset: int, *headers: tuple[str, bytes | None]) -> Record:
    return Record(offset, 1_000, b"k", b"value", headers)


def batch(base: int, *rows: Record, **more: int) -> bytes:
    encoded = bytearray(records.encode(rows, base_offset=base, compression=Compression(more.pop("compression", 0))))
    patch(encoded, base, 0)
    return bytes(encoded)


def test_messages_and_the_gaps_between_them() -> None:
    stretch = Stretch(0, 10, [record(2), record(3), record(7)])
    found = list(offers_of(stretch, Span(1, 8), Rules()))
    assert [(offer.first, offer.last, offer.passes) for offer, _ in found] == [
        (1, 1, False), (2, 2, True), (3, 3, True), (4, 6, False), (7, 7, True), (8, 8, False),
    ]  # fmt: skip
    assert [row.offset for _, row in found if row is not None] == [2, 3, 7]
    assert [offer for offer, _ in offers_of(stretch, Span(3, 3), Rules())] == [Offered(3, 3, 6)]


def test_what_a_queue_looks_at() -> None:
    row = record(0, (h.TTL_MS, b"500"), (h.ATTEMPTS, b"3"))
    stretch = Stretch(0, 1, [row])

    def offer(rules: Rules) -> Offered:
        [(found, _)] = offers_of(stretch, Span(0, 0), rules)
        return found

    size = 6 + len(h.TTL_MS) + 3 + len(h.ATTEMPTS) + 1
    assert offer(Rules()) == Offered(0, 0, size, expires_ms=1_500)
    assert offer(Rules(keyed=True)).key == b"k"
    assert offer(Rules(copies=True)).attempts == 3
    assert not offer(Rules(passes=lambda one: one.key == b"other")).passes
    assert [Rules().plain, Rules(keyed=True).plain, Rules(copies=True).plain] == [True, False, False]


def test_batches_are_offered_whole_where_nothing_in_them_matters() -> None:
    first, second = batch(0, record(0), record(1), record(2)), batch(5, record(5), record(6))
    found = list(whole_offers(first + second, (), Span(1, 20), UNREADABLE))
    assert [(offer.first, offer.last, offer.passes) for offer in found] == [
        (1, 2, True), (3, 4, False), (5, 6, True),
    ]  # fmt: skip
    assert found[2].size == len(second)
    assert [offer.last for offer in whole_offers(first + second, (), Span(0, 1), UNREADABLE)] == [1]


def test_a_batch_with_something_to_look_at_is_offered_as_its_messages() -> None:
    for compression in (0, 3):
        asking = batch(0, record(0), record(1, (h.EXPIRES_AT, b"9")), compression=compression)
        found = list(whole_offers(asking, (), Span(0, 1), UNREADABLE))
        assert [(offer.first, offer.last, offer.expires_ms) for offer in found] == [(0, 0, 0), (1, 1, 9)]
    compacted = batch(0, record(0), record(4))
    found = list(whole_offers(compacted, (), Span(0, 4), UNREADABLE))
    assert [(offer.first, offer.last, offer.passes) for offer in found] == [(0, 0, True), (1, 3, False), (4, 4, True)]


def test_markers_and_aborted_batches_have_no_messages() -> None:
    rows = [Record(0, 1, None, b"a", ()), Record(1, 1, None, b"b", ())]
    aborted = bytearray(records.encode(rows, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    patch(aborted, 0, 0)
    marker = bytearray(control.marker(7, 0, commit=False, coordinator_epoch=1, timestamp_ms=1))
    patch(marker, 2, 0)
    data = bytes(aborted) + bytes(marker) + batch(3, record(3))
    found = list(whole_offers(data, [AbortedTransaction(7, 0)], Span(0, 9), UNREADABLE))
    assert [(offer.first, offer.last, offer.passes) for offer in found] == [(0, 1, False), (2, 2, False), (3, 3, True)]


def test_a_batch_that_was_to_be_opened_and_cannot_be_read_has_no_messages() -> None:
    header = read_header(batch(0, record(0), record(1)))
    asking = assemble(header, h.PREFIX.encode() + b"\xff" * 20)
    torn = assemble(header._replace(attributes=Compression.GZIP, base_offset=2), b"\xff" * 20)
    found = list(whole_offers(asking + torn + batch(4, record(4)), (), Span(0, 9), UNREADABLE))
    assert [(offer.first, offer.last, offer.passes) for offer in found] == [(0, 1, False), (2, 3, False), (4, 4, True)]
