"""Producers whose batch was refused for now: what they had sent behind it is refused alike.

A producer that pipelines has sent the next batches before it hears of the refusal. When the reason is gone meanwhile,
the next batch leaves a gap in the sequence. That is no loss, and must not be told as one: the producer would begin a
new epoch, and send again under it what is in the log already. Where the log does not know the producer, nothing would
even notice the gap.

A batch that was appended, and whose leader stepped down before it was committed, counts as refused too: its producer
was told to send it again, and it may have been cut off by the time this broker leads once more.

What a producer had sent to the leader before, and was never answered, may come again behind what follows it: librdkafka
takes it back into its queue from one thread while another sends on to the new leader (its issue 4953). So a gap before
the first batch that a new leader gets of a producer is supposed to be such a one, for a while.
"""

from typing import Final

from runnel.log.producers import is_before
from runnel.model.errors import OutOfOrderSequence, RetriableError, RunnelError
from runnel.record.batch import BatchHeader

REFUSED_MAX: Final = 1_000  # producers remembered; beyond, the oldest is forgotten
BEHIND_MAX: Final = 8  # batches that can be on their way behind one; clients allow five
PATIENCE_OVER: Final = -1  # a gap is told from then on, until its producer goes on


class _Refused:
    __slots__ = ("behind", "epoch", "error", "sequence")

    def __init__(self, header: BatchHeader, error: RetriableError) -> None:
        self.epoch = header.producer_epoch
        self.sequence = header.base_sequence
        self.error = error
        self.behind = BEHIND_MAX  # so many more may be refused for it: a producer that gave up must hear the truth

    def precedes(self, header: BatchHeader) -> bool:
        return self.epoch == header.producer_epoch and is_before(self.sequence, header.base_sequence)

    def is_same(self, header: BatchHeader) -> bool:
        return self.epoch == header.producer_epoch and self.sequence == header.base_sequence

    def succeeds(self, header: BatchHeader) -> bool:
        return self.epoch == header.producer_epoch and is_before(header.base_sequence, self.sequence)


class Refusals:
    """Those of one partition."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, _Refused] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def note(self, header: BatchHeader, error: RetriableError) -> None:
        """This batch will come again, before whatever follows it."""
        known = self._waiting.get(header.producer_id)
        if header.producer_id < 0 or (known is not None and error is known.error):
            return
        if known is None and len(self._waiting) >= REFUSED_MAX:
            del self._waiting[next(iter(self._waiting))]
        refused = self._waiting[header.producer_id] = _Refused(header, error)
        if known is not None and known.behind > PATIENCE_OVER and known.precedes(header):
            refused.sequence = known.sequence

    def suppose(self, header: BatchHeader, missing: int, error: RetriableError) -> None:
        """The batch with this sequence is missing before another, but it may be on its way."""
        known = self._waiting.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            self.note(header._replace(base_sequence=missing), error)

    def check(self, header: BatchHeader) -> None:
        """Raise for a batch behind a refused one, of a producer that the log does not know."""
        refused = self._waiting.get(header.producer_id)
        if refused is not None and header.base_sequence != refused.sequence and self._is_behind(refused, header):
            raise refused.error

    def instead_of(self, gap: OutOfOrderSequence, header: BatchHeader) -> RunnelError:
        """What a producer is told whose batch leaves a gap."""
        refused = self._waiting.get(header.producer_id)
        return refused.error if refused is not None and self._is_behind(refused, header) else gap

    def taken(self, header: BatchHeader, *, in_line: bool = False) -> None:
        """A producer goes on in sequence: this is in the log, and does not lie before what was refused; or it is what
        was refused, and stands in line before whatever follows it.
        """
        refused = self._waiting.get(header.producer_id)
        if refused is not None and (refused.is_same(header) if in_line else not refused.succeeds(header)):
            del self._waiting[header.producer_id]

    def _is_behind(self, refused: _Refused, header: BatchHeader) -> bool:
        refused.behind = max(refused.behind - 1, PATIENCE_OVER)
        return refused.behind > PATIENCE_OVER and refused.epoch == header.producer_epoch
