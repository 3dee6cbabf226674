"""Producers that were refused for now: what unsays a refusal, and what does not."""

from runnel.model.errors import NotLeader, OutOfOrderSequence
from runnel.model.ids import Offset
from runnel.record import records
from runnel.record.batch import BatchHeader, read_header
from runnel.replica.refusals import BEHIND_MAX, REFUSED_MAX, Refusals

GAP = OutOfOrderSequence("a batch is missing")


def header(sequence: int, *, producer: int = 4, epoch: int = 0) -> BatchHeader:
    rows = [records.Record(Offset(0), 0, None, b"x", ())]
    return read_header(records.encode(rows, producer_id=producer, producer_epoch=epoch, base_sequence=sequence))


def refused(sequence: int) -> tuple[Refusals, NotLeader]:
    refusals, error = Refusals(), NotLeader("led elsewhere")
    refusals.note(header(sequence), error)
    return refusals, error


def test_what_lies_behind_a_refused_batch_is_refused_alike_until_that_is_taken() -> None:
    refusals, error = refused(7)
    assert refusals.instead_of(GAP, header(8)) is error
    refusals.taken(header(7))
    assert refusals.instead_of(GAP, header(9)) is GAP


def test_a_batch_before_the_refused_one_unsays_nothing() -> None:
    """It is in the log already, and comes again."""
    refusals, error = refused(7)
    refusals.taken(header(6))
    assert refusals.instead_of(GAP, header(8)) is error


def test_what_stands_in_line_unsays_its_own_refusal_and_no_other() -> None:
    """What comes next will stand behind it, even where the log does not know the producer yet."""
    refusals, error = refused(7)
    refusals.taken(header(8), in_line=True)
    assert refusals.instead_of(GAP, header(8)) is error
    refusals.taken(header(7), in_line=True)
    refusals.check(header(8))


def test_sequences_wrap() -> None:
    refusals, error = refused(0)
    refusals.taken(header(2**31 - 1))
    assert refusals.instead_of(GAP, header(1)) is error


def test_a_new_epoch_goes_on_without_what_was_refused_in_the_last() -> None:
    refusals, _ = refused(7)
    refusals.taken(header(0, epoch=1))
    assert refusals.instead_of(GAP, header(2, epoch=1)) is GAP


def test_each_refusal_stands_for_as_many_batches_as_may_be_behind_it() -> None:
    refusals, _ = refused(7)
    for _ in range(BEHIND_MAX):
        assert refusals.instead_of(GAP, header(8)) is not GAP
    later = NotLeader("still led elsewhere")
    refusals.note(header(8), later)
    for _ in range(BEHIND_MAX):
        assert refusals.instead_of(GAP, header(9)) is later
    assert refusals.instead_of(GAP, header(9)) is GAP


def test_the_first_that_was_refused_is_the_one_to_wait_for() -> None:
    """Where the log does not know the producer, it would take the first batch that comes for the beginning."""
    refusals, _ = refused(7)
    refusals.note(header(8), NotLeader("still led elsewhere"))
    refusals.check(header(7))
    refusals.note(header(5), NotLeader("led elsewhere again"))
    refusals.check(header(5))


def test_what_is_supposed_to_be_on_its_way_is_waited_for_as_if_it_had_been_refused() -> None:
    refusals, error = Refusals(), NotLeader("it may be on its way")
    refusals.suppose(header(9), 7, error)
    assert refusals.instead_of(GAP, header(9)) is error
    refusals.taken(header(6))  # it is in the log, and comes again
    assert refusals.instead_of(GAP, header(9)) is error
    refusals.taken(header(7))
    assert refusals.instead_of(GAP, header(9)) is GAP


def test_nothing_is_supposed_for_ever() -> None:
    refusals, told = Refusals(), []
    for _ in range(2 * BEHIND_MAX):
        refusals.suppose(header(9), 7, NotLeader("it may be on its way"))
        told.append(refusals.instead_of(GAP, header(9)))
    assert [each is GAP for each in told] == [False] * BEHIND_MAX + [True] * BEHIND_MAX


def test_nothing_is_supposed_where_it_is_known_what_was_refused() -> None:
    refusals, error = refused(7)
    refusals.suppose(header(9), 8, NotLeader("it may be on its way"))
    assert refusals.instead_of(GAP, header(8)) is error


def test_only_so_many_producers_are_remembered() -> None:
    refusals, error = Refusals(), NotLeader("led elsewhere")
    for producer in range(REFUSED_MAX + 1):
        refusals.note(header(0, producer=producer), error)
    assert refusals.instead_of(GAP, header(1, producer=0)) is GAP
    assert refusals.instead_of(GAP, header(1, producer=1)) is error
