"""What the log holds, as it is offered to a queue: message by message, or batch by batch where nothing in them matters.

Rule 1: every offset of what is offered is named. What has no message in it, or none that passes, is offered as such.
Rule 2: a batch is offered whole only if no message in it says anything about its delivery. Whether one does, its bytes
        tell: every header that Runnel reads begins with the same letters.
Rule 3: a batch that had to be opened and can't be read has no message in it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from runnel.broker.messages import Stretch, size_of
from runnel.client.isolation import Aborted
from runnel.log.log import AbortedTransaction
from runnel.model import headers as h
from runnel.model.errors import InvalidRecord
from runnel.queues.copies import maker_of
from runnel.queues.expiry import expires_ms
from runnel.queues.letters import attempts_of
from runnel.queues.values import Offered, Span
from runnel.record.batch import BatchHeader, headers
from runnel.record.records import Record, decode, open_batch
from runnel.replica.unreadable import Unreadable

Passes: TypeAlias = Callable[[Record], bool]
OURS: Final = h.PREFIX.encode()  # in the bytes of a batch: a message may ask for something


class Rules(NamedTuple):
    """What a queue looks at in messages."""

    keyed: bool = False
    passes: Passes | None = None
    copies: bool = False  # they are copies, and bring their attempts with them, and what made them

    @property
    def plain(self) -> bool:
        """Whether batches may be offered whole."""
        return not self.keyed and self.passes is None and not self.copies


def offers_of(stretch: Stretch, span: Span, rules: Rules) -> Iterator[tuple[Offered, Record | None]]:
    """The messages of a stretch that lie in a span, and the gaps between them, in order."""
    at = max(span.first, stretch.first)
    until = min(span.last + 1, stretch.end)
    for record in stretch.since(at):
        if record.offset >= until:
            break
        if record.offset > at:
            yield Offered(at, record.offset - 1, passes=False), None
        yield offer_of(record, rules), record
        at = record.offset + 1
    if at < until:
        yield Offered(at, until - 1, passes=False), None


def offer_of(record: Record, rules: Rules) -> Offered:
    offset = record.offset
    passes = rules.passes is None or rules.passes(record)
    key = record.key if rules.keyed else None
    if not record.headers:
        return Offered(offset, offset, size_of(record), passes, key)
    expires = expires_ms(record.headers, record.timestamp)
    if not rules.copies:
        return Offered(offset, offset, size_of(record), passes, key, expires)
    attempts, maker = attempts_of(record.headers), maker_of(record.headers)
    return Offered(offset, offset, size_of(record), passes, key, expires, attempts, maker=maker)


# --- batch by batch


def whole_offers(
    data: bytes | memoryview, aborted: Sequence[AbortedTransaction], span: Span, unreadable: Unreadable
) -> Iterator[Offered]:
    """The batches that lie in a span; those with something to look at as their messages."""
    judged = Aborted((one.first_offset, one.producer_id) for one in aborted)
    view = memoryview(data)
    at = span.first
    for position, header in headers(view):
        if header.base_offset > span.last:
            break
        if header.base_offset > at:
            yield Offered(at, header.base_offset - 1, passes=False)
        inside = Span(max(at, header.base_offset), min(span.last, header.last_offset))
        if inside.last >= inside.first:
            batch = view[position : position + header.size]
            yield from _batch_offers(batch, header, inside, judged.judge(header) or header.control, unreadable)
        else:
            judged.judge(header)
        at = max(at, header.last_offset + 1)


def _batch_offers(
    batch: memoryview, header: BatchHeader, inside: Span, void: bool, unreadable: Unreadable
) -> Iterable[Offered]:
    if void:
        return (Offered(*inside, passes=False),)
    gaps = header.count != header.last_offset_delta + 1
    try:
        if gaps or OURS in open_batch(batch, bytes_max=unreadable.bytes_max)[1]:
            stretch = Stretch(header.base_offset, header.last_offset + 1, decode(batch, bytes_max=unreadable.bytes_max))
            return (offer for offer, _ in offers_of(stretch, inside, Rules()))
    except InvalidRecord as problem:
        unreadable.pass_over(header, problem)
        return (Offered(*inside, passes=False),)
    share = header.size * (inside.last - inside.first + 1) // header.count
    return (Offered(*inside, size=share),)
