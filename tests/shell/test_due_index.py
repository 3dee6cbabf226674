"""The index of what waits: found by time and by id, in step with the log, and thrown away when it is damaged."""

from pathlib import Path
from uuid import UUID

import pytest

from runnel.model.ids import PartitionKey, TopicId
from runnel.model.schedule import CANCELLED_MS, Applied, Drop, DueIndex, Front, IndexDamaged, Move, Put
from runnel.shell.due_index import SqliteDueIndex, below, in_memory

ONE, TWO = PartitionKey(TopicId(UUID(int=1)), 0), PartitionKey(TopicId(UUID(int=2)), 7)


def put(id: str, due_ms: int, offset: int, target: PartitionKey = ONE, body: bytes = b"body") -> Put:
    return Put(target, id, due_ms, offset, body)


def ids(index: DueIndex, target: PartitionKey = ONE, upto_ms: int = 10**9) -> list[str]:
    return [row.id for row in index.due(target, upto_ms, 100, 10**9)]


def counts(index: DueIndex) -> dict[PartitionKey, tuple[int, int | None]]:
    return {row.target: (row.pending, row.next_due_ms) for row in index.targets()}


def test_what_is_due_comes_by_time_and_then_by_when_it_was_parked() -> None:
    index = in_memory("")
    assert index.applied() == Applied(-1, -1)
    index.apply([put("c", 30, 1), put("b", 20, 2), put("a", 20, 3), put("x", 5, 4, TWO)], Applied(5, 2))
    assert index.applied() == Applied(5, 2)
    assert ids(index) == ["b", "a", "c"]
    assert ids(index, upto_ms=29) == ["b", "a"]
    assert ids(index, TWO) == ["x"]
    assert [row.id for row in index.due(ONE, 99, 2, 10**9)] == ["b", "a"]
    assert [row.id for row in index.due(ONE, 99, 9, 1)] == ["b"], "one at least, whatever its size"
    assert [index.next_due_ms(ONE, *after) for after in ((-1, -1), (20, 2), (20, 3), (30, 1))] == [20, 20, 30, None]
    assert counts(index) == {ONE: (3, 20), TWO: (1, 5)}


def test_a_message_that_is_parked_again_is_replaced_and_one_that_is_dropped_is_gone() -> None:
    index = in_memory("")
    index.apply([put("a", 10, 1), put("b", 10, 2)], Applied(3, 0))
    index.apply([put("a", 50, 3), put("n", 20, 4), Drop(ONE, "b"), Drop(ONE, "unknown")], Applied(6, 0))
    assert ids(index) == ["n", "a"]
    assert counts(index) == {ONE: (2, 20)}
    index.apply([put("q", 1, 6), Drop(ONE, "q"), Drop(ONE, "a"), put("a", 7, 9)], Applied(10, 0))
    assert ids(index) == ["a", "n"], "of several changes of one message the last one counts"
    assert counts(index) == {ONE: (2, 7)}


def test_an_id_is_found_wherever_it_waits() -> None:
    index = in_memory("")
    index.apply([put("a", 10, 1, body=b"1"), put("a", 20, 2, TWO, b"2"), put("b", 10, 3)], Applied(4, 0))
    assert {(row.target, row.due_ms, row.body) for row in index.named("a")} == {(ONE, 10, b"1"), (TWO, 20, b"2")}
    assert index.named("c") == []
    found = index.get(TWO, "a")
    assert found is not None
    assert found.offset == 2
    assert index.get(TWO, "b") is None
    assert index.get(PartitionKey(TopicId(UUID(int=9)), 0), "b") is None


def test_what_was_cancelled_is_known_until_it_comes_again() -> None:
    index = in_memory("")
    index.apply([put("a", 10, 1), put("b", 10, 2), put("c", 10, 3)], Applied(4, 0))
    assert index.cancelled_ms("a") is None
    index.apply([Drop(ONE, "a", 100), Drop(ONE, "b"), Drop(ONE, "c", 200)], Applied(7, 0))
    assert [index.cancelled_ms(id) for id in "abc"] == [100, None, 200]
    assert counts(index) == {ONE: (0, None)}
    index.apply([put("a", 20, 7)], Applied(8, 0))
    index.apply([put("c", 20, 8), Drop(ONE, "c")], Applied(10, 0))
    assert [index.cancelled_ms(id) for id in "abc"] == [None, None, None], "a later message was sent"
    index.apply([Drop(ONE, "a", 300), Drop(TWO, "a", 400)], Applied(12, 0))
    assert index.cancelled_ms("a") == 400


def test_what_was_cancelled_is_forgotten_after_a_day() -> None:
    index = in_memory("")
    for n in range(10):
        index.apply([Drop(ONE, f"{n}-{m}", n * CANCELLED_MS // 4) for m in range(500)], Applied(n + 1, 0))
    known = [n for n in range(10) if index.cancelled_ms(f"{n}-0") is not None]
    assert known == [5, 6, 7, 8, 9]


def test_a_list_goes_on_where_it_ended() -> None:
    index = in_memory("")
    index.apply([put(f"m{n}", n // 3, n) for n in range(9)], Applied(9, 0))
    first = index.first(ONE, 0, "", 4)
    assert [row.id for row in first] == ["m0", "m1", "m2", "m3"]
    assert [row.id for row in index.first(ONE, first[-1].due_ms, first[-1].id, 4)] == ["m4", "m5", "m6", "m7"]


def test_fronts_are_kept_with_their_targets() -> None:
    index = in_memory("")
    index.apply([Move(ONE, Front(100, 7)), Move(TWO, Front(5, 5)), Move(TWO, None)], Applied(3, 0))
    assert {row.target: row.front for row in index.targets()} == {ONE: Front(100, 7), TWO: None}


def test_it_is_there_after_a_restart_and_gone_when_destroyed(tmp_path: Path) -> None:
    opened = below(str(tmp_path))
    index = opened("due.sqlite")
    index.apply([put("a", 10, 1), Move(ONE, Front(9, 9))], Applied(2, 4))
    index.close()
    index = opened("due.sqlite")
    assert index.applied() == Applied(2, 4)
    assert ids(index) == ["a"]
    index.apply([put("b", 5, 2)], Applied(3, 4))
    assert counts(index) == {ONE: (2, 5)}
    index.destroy()
    assert list(tmp_path.iterdir()) == []
    assert opened("due.sqlite").applied() == Applied(-1, -1)


@pytest.mark.parametrize("wreck", [b"", b"not a database at all" * 100])
def test_a_file_that_is_no_index_is_thrown_away(tmp_path: Path, wreck: bytes) -> None:
    (tmp_path / "due.sqlite").write_bytes(wreck)
    index = below(str(tmp_path))("due.sqlite")
    assert index.applied() == Applied(-1, -1)
    index.apply([put("a", 10, 1)], Applied(2, 0))


def test_an_index_of_another_make_is_thrown_away(tmp_path: Path) -> None:
    index = SqliteDueIndex(str(tmp_path / "due.sqlite"))
    index.apply([put("a", 10, 1)], Applied(2, 0))
    index._base.execute("pragma user_version = 99")
    index.close()
    assert ids(below(str(tmp_path))("due.sqlite")) == []


def test_a_change_is_made_wholly_or_not_at_all() -> None:
    index = in_memory("")
    index.apply([put("a", 10, 1)], Applied(2, 0))
    with pytest.raises(IndexDamaged):
        index.apply([put("new", 1, 5, TWO), put("b", 10, 6), put("c", None, 7)], Applied(8, 0))  # type: ignore[arg-type]
    assert index.applied() == Applied(2, 0)
    assert counts(index) == {ONE: (1, 10)}
    index.apply([put("new", 1, 5, TWO)], Applied(6, 0))
    assert ids(index, TWO) == ["new"]
    assert ids(index) == ["a"]
