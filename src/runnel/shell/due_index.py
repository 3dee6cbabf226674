"""The real index of a schedule's shard: a SQLite file that can be built again from the log.

Rule 1: what the log says and how far it was followed change in one transaction; a crash leaves an earlier moment.
Rule 2: a file that is damaged, or of another make, is thrown away: the log has it all.
Rule 3: memory is bounded by SQLite's page cache, however much waits.

    pending   by its offset in the log; found by (target, due, offset) and by (id, target)
    target    one row for each partition that something waits for, or waited: how many, and its front
    cancelled what was cancelled within the last day, and did not come again
"""

import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from uuid import UUID

from runnel.model.ids import PartitionKey, TopicId
from runnel.model.schedule import (
    CANCELLED_MS,
    Applied,
    Change,
    Drop,
    DueIndex,
    Front,
    IndexDamaged,
    Put,
    Row,
    TargetRow,
)

MAKE: Final = 2  # another number: an index of another make, to be built again
CACHE_KIB: Final = 8 * 1024
_SCHEMA: Final = """
create table mark (only integer primary key check (only = 0), offset integer not null, epoch integer not null);
create table target (
    number integer primary key, topic blob not null, partition integer not null, pending integer not null,
    front integer, floor integer, unique (topic, partition));
create table pending (
    offset integer primary key, target integer not null, due integer not null, id text not null, body blob not null);
create index by_due on pending (target, due, offset);
create unique index by_id on pending (id, target);
create table cancelled (id text not null, target integer not null, at integer not null, primary key (id, target))
    without rowid;
create index by_time on cancelled (at);
"""
_FORGET: Final = """delete from cancelled where (id, target) in
    (select id, target from cancelled where at < ? order by at limit 1000)"""
_ROW: Final = "select id, due, offset, body from pending"


class SqliteDueIndex:
    """One file, or memory alone."""

    def __init__(self, path: str) -> None:
        """Open it; ":memory:" for one that is gone with the process."""
        self._path = path
        self._numbers: dict[PartitionKey, int] = {}
        with _told():
            # Used off the loop, by one thread after the other.
            self._base = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            try:
                self._prepare()
            except sqlite3.Error:
                self._base.close()
                raise

    def _prepare(self) -> None:
        run = self._base.execute
        run("pragma journal_mode = wal")
        run("pragma synchronous = normal")  # a power loss takes the last transactions, and hurts nothing
        run(f"pragma cache_size = -{CACHE_KIB}")
        make = run("pragma user_version").fetchone()[0]
        if make == 0:
            self._base.executescript(f"begin; {_SCHEMA} pragma user_version = {MAKE}; commit")
        elif make != MAKE:
            raise sqlite3.DatabaseError(f"an index of make {make}, this is {MAKE}")
        self._learn_numbers()

    def _learn_numbers(self) -> None:
        rows = self._base.execute("select number, topic, partition from target")
        self._numbers = {_key(topic, partition): number for number, topic, partition in rows}

    def applied(self) -> Applied:
        with _told():
            row = self._base.execute("select offset, epoch from mark").fetchone()
        return Applied(*row) if row else Applied(-1, -1)

    def apply(self, changes: Sequence[Change], applied: Applied) -> None:
        with _told(), self._transaction():
            last: dict[PartitionKey, dict[str, Put | Drop]] = {}
            for change in changes:
                if isinstance(change, Put | Drop):
                    last.setdefault(change.target, {})[change.id] = change  # what a later one undoes is not done
                else:
                    self._move(change.target, change.front)
            for target, by_id in last.items():
                self._change(self._number(target), by_id.values())
            self._base.execute("insert or replace into mark values (0, ?, ?)", applied)

    def _change(self, number: int, changes: Collection[Put | Drop]) -> None:
        """Change what waits for one target, each id once."""
        puts = [(one.offset, number, one.due_ms, one.id, one.body) for one in changes if isinstance(one, Put)]
        drops = [(one.id, number) for one in changes if isinstance(one, Drop)]
        run = self._base.executemany
        more = run("insert or ignore into pending values (?, ?, ?, ?, ?)", puts).rowcount if puts else 0
        if more < len(puts):  # some waited already: they are replaced
            run("delete from pending where id = ? and target = ?", [(put[3], number) for put in puts])
            run("insert into pending values (?, ?, ?, ?, ?)", puts)
        less = run("delete from pending where id = ? and target = ?", drops).rowcount if drops else 0
        self._note_cancelled(number, changes)
        if more != less:
            self._base.execute("update target set pending = pending + ? where number = ?", (more - less, number))

    def _note_cancelled(self, number: int, changes: Collection[Put | Drop]) -> None:
        """Note a cancellation, which holds until the id comes again, or for a day."""
        times = {one.id: one.cancelled_ms for one in changes if isinstance(one, Drop) and one.cancelled_ms is not None}
        if not times and self._base.execute("select 1 from cancelled limit 1").fetchone() is None:
            return
        others = [(one.id, number) for one in changes if one.id not in times]
        self._base.executemany("delete from cancelled where id = ? and target = ?", others)
        rows = [(id, number, at) for id, at in times.items()]
        self._base.executemany("insert or replace into cancelled values (?, ?, ?)", rows)
        if times:
            self._base.execute(_FORGET, (max(times.values()) - CANCELLED_MS,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._base.execute("begin")
        try:
            yield
        except BaseException:
            self._base.execute("rollback")
            self._learn_numbers()
            raise
        self._base.execute("commit")

    def _move(self, target: PartitionKey, front: Front | None) -> None:
        number = self._number(target)
        values = (None, None) if front is None else front
        self._base.execute("update target set front = ?, floor = ? where number = ?", (*values, number))

    def _number(self, target: PartitionKey) -> int:
        number = self._numbers.get(target)
        if number is None:
            place = (target.topic_id.bytes, target.number)
            found = self._base.execute("select number from target where topic = ? and partition = ?", place).fetchone()
            if found is None:
                new = self._base.execute("insert into target (topic, partition, pending) values (?, ?, 0)", place)
                found = (new.lastrowid,)
            number = self._numbers[target] = found[0]
        return number

    # --- looking

    def targets(self) -> list[TargetRow]:
        sql = """select topic, partition, pending, front, floor,
                 (select min(due) from pending where pending.target = target.number) from target"""
        with _told():
            rows = self._base.execute(sql).fetchall()
        return [
            TargetRow(_key(topic, partition), pending, due, None if front is None else Front(front, floor))
            for topic, partition, pending, front, floor, due in rows
        ]

    def due(self, target: PartitionKey, upto_ms: int, rows_max: int, bytes_max: int) -> list[Row]:
        sql = f"{_ROW} where target = ? and due <= ? order by due, offset limit ?"
        found: list[Row] = []
        for row in self._rows(target, sql, (self._numbers.get(target), upto_ms, rows_max)):
            bytes_max -= len(row.body)
            if found and bytes_max < 0:
                break
            found.append(row)
        return found

    def next_due_ms(self, target: PartitionKey, after_ms: int, offset: int) -> int | None:
        sql = "select due from pending where target = ? and (due, offset) > (?, ?) order by due, offset limit 1"
        with _told():
            row = self._base.execute(sql, (self._numbers.get(target), after_ms, offset)).fetchone()
        return None if row is None else int(row[0])

    def named(self, id: str) -> list[Row]:
        keys = {number: key for key, number in self._numbers.items()}
        sql = "select target, id, due, offset, body from pending where id = ?"
        with _told():
            return [Row(keys[number], *rest) for number, *rest in self._base.execute(sql, (id,)) if number in keys]

    def get(self, target: PartitionKey, id: str) -> Row | None:
        sql = f"{_ROW} where id = ? and target = ?"
        return next(self._rows(target, sql, (id, self._numbers.get(target))), None)

    def cancelled_ms(self, id: str) -> int | None:
        with _told():
            [found] = self._base.execute("select max(at) from cancelled where id = ?", (id,)).fetchone()
        return None if found is None else int(found)

    def first(self, target: PartitionKey, from_ms: int, after_id: str, rows_max: int) -> list[Row]:
        sql = f"{_ROW} where target = ? and due >= ? and (due, id) > (?, ?) order by due, id limit ?"
        values = (self._numbers.get(target), from_ms, from_ms, after_id, rows_max)
        return list(self._rows(target, sql, values))

    def _rows(self, target: PartitionKey, sql: str, values: tuple[Any, ...]) -> Iterator[Row]:
        with _told():
            for row in self._base.execute(sql, values):
                yield Row(target, *row)

    # --- the end

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._base.close()

    def destroy(self) -> None:
        self.close()
        _remove(self._path)


def _remove(path: str) -> None:
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.remove(path + suffix)


def _key(topic: bytes, partition: int) -> PartitionKey:
    return PartitionKey(TopicId(UUID(bytes=topic)), partition)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise IndexDamaged(str(error)) from error


def in_memory(path: str) -> DueIndex:
    """An index that is built anew with each start: for simulations."""
    return SqliteDueIndex(":memory:")


def below(data: str) -> Callable[[str], DueIndex]:
    """Indexes in files below a data directory; one that can't be read is thrown away."""

    def open_index(path: str) -> DueIndex:
        file = os.path.join(data, path)
        try:
            return SqliteDueIndex(file)
        except IndexDamaged:
            _remove(file)
            return SqliteDueIndex(file)

    return open_index
