"""Copies count as long as nothing was rewound since they were made, and for the queue that made them alone."""

from uuid import UUID

from tests.queues.rig import Rig, flat

from runnel.model import headers as h
from runnel.model.ids import PartitionKey, TopicId
from runnel.queues.copies import maker_of, told
from runnel.queues.values import Maker, Offered, Since, Void, Voided

ORIGIN, OTHER = (PartitionKey(TopicId(UUID(int=7)), number) for number in (0, 1))


def copies(rig: Rig, *makers: Maker | None) -> list[int]:
    """Which of these copies, from the first offset on, are to be had."""
    offers = [Offered(at, at, maker=maker) for at, maker in enumerate(makers)]
    return [offset for offset, _ in flat(rig.offer(offers))]


def test_a_copy_tells_what_made_it() -> None:
    maker = Maker(12, ORIGIN, 13)
    headers = told([("colour", b"red"), (h.COPIED_BY, b"old")], maker)
    assert maker_of(headers) == maker
    assert told(headers, None) == [("colour", b"red")]
    assert maker_of([("colour", b"red")]) is None


def test_what_can_not_be_read_tells_nothing() -> None:
    for text in (b"", b"1/2/3", b"1/" + b"-" * 36 + b"/0/0", b"9" * 5_000, b"\xff", f"-1/{UUID(int=7)}/0/0".encode()):
        assert maker_of([(h.COPIED_BY, text)]) is None


def test_copies_count_since_the_generation_in_which_their_partition_was_rewound() -> None:
    rig = Rig(end=5)
    rig.ask("void", Void([Since(ORIGIN, 4)]))
    rig.ask("void", Void([Since(ORIGIN, 3)]))  # the word of an earlier one comes late
    rig.wake()
    old, new, other = Maker(0, ORIGIN, 3), Maker(0, ORIGIN, 4), Maker(0, OTHER, 0)
    assert copies(rig, old, new, other, None, old) == [1, 2, 3]


def test_copies_of_another_queue_count_for_nothing() -> None:
    rig = Rig(end=3)
    rig.see(made=9)
    assert copies(rig, Maker(8, ORIGIN, 8), Maker(9, ORIGIN, 9), Maker(0, ORIGIN, 0)) == [1, 2]


def test_a_queue_that_is_made_again_does_not_know_what_was_rewound_before() -> None:
    rig = Rig(end=1)
    rig.see(made=8)
    rig.ask("void", Void([Since(ORIGIN, 100)]))
    rig.see(made=9)
    rig.wake()
    assert copies(rig, Maker(9, ORIGIN, 9)) == [0]
    assert len(rig.kept) == 2  # the mark and a chunk: nothing else is left


def test_what_lies_below_an_offset_is_done_whoever_has_it() -> None:
    rig = Rig(end=6)
    assert copies(rig, None, None, None) == [0, 1, 2]
    assert rig.ask("void", Void([], below=2)) == Voided(0, 2)
    assert rig.accept(1, 2) == {1}
    assert rig.ask("void", Void([], below=100)) == Voided(3, 6)
