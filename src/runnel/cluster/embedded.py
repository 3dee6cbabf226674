"""The store of a single broker: SQLite in its data directory.

Rule 1: nothing is told to anyone before SQLite has synced it (WAL, synchronous=FULL). All nodes are also held in
        memory, so that reads never wait; the memory follows the disk, never leads it.
Rule 2: the file appears under its name only when it is whole. So a file that is empty, foreign or damaged is never
        taken for a new cluster: it is an error, and nothing is deleted because of it.
Rule 3: ephemeral nodes are never written: the process is the session.

docs/formats/metadata.md draws the table.
"""

import asyncio
import sqlite3
import struct
from collections.abc import Callable, Sequence
from typing import Final, NoReturn, Self, TypeVar

from crc32c import crc32c

from runnel.cluster.store import PERSISTENT, Node, Op, StoreDamaged, StoreUnavailable
from runnel.cluster.tree import Plan, Tree
from runnel.model.errors import DataInUse, Fatal, StorageFailed
from runnel.model.seams import Disk

FOLDER: Final = "cluster"
FILE: Final = "cluster/metadata.db"
NEW_FILE: Final = "cluster/metadata.db.new"
APPLICATION_ID: Final = 0x52554E4C  # "RUNL": tells our file from any other SQLite file
FORMAT: Final = 1  # SQLite's user_version; grows when the table changes
HEADER: Final = struct.Struct(">16s44xI4xI")  # of an SQLite file: magic, user_version, application_id
SESSION: Final = 1

T = TypeVar("T")
_UPSERT = "INSERT INTO node VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET version=?2, value=?3, crc=?4"


class Embedded:
    """The nodes of one broker. Use `Embedded.open`."""

    def __init__(self, disk: Disk, database: "_Database", tree: Tree) -> None:
        self._disk = disk
        self._database = database
        self._tree = tree
        self._turn = asyncio.Lock()
        self._writes: set[asyncio.Future[None]] = set()
        self._watches: dict[str, set[_Watch]] = {}
        self._closed = False

    @classmethod
    async def open(cls, disk: Disk, root: str) -> Self:
        """Open or create the store below `root`, the data directory that `disk` serves."""
        database, tree = await disk.offload(lambda: _open(disk, root))
        return cls(disk, database, tree)

    @property
    def session(self) -> int:
        return SESSION

    async def get(self, path: str) -> Node | None:
        return self._tree.get(path)

    async def get_all(self, paths: Sequence[str]) -> list[Node | None]:
        return [self._tree.get(path) for path in paths]

    async def children(self, path: str) -> list[str]:
        return self._tree.children(path)

    async def multi(self, ops: Sequence[Op]) -> None:
        # A caller that is cancelled must not leave memory behind the disk: the write goes on without it.
        write = asyncio.ensure_future(self._multi(ops))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        await asyncio.shield(write)

    async def _multi(self, ops: Sequence[Op]) -> None:
        async with self._turn:
            if self._closed:
                raise StoreUnavailable("the metadata store is closed: the broker is stopping")
            plan = self._tree.plan(ops, SESSION)
            rows = _durable(plan, self._tree)
            if rows:
                await self._disk.offload(lambda: self._database.write(rows))
            self._tell(self._tree.apply(plan))

    def _tell(self, touched: set[str]) -> None:
        for path in touched & self._watches.keys():
            for watch in self._watches[path]:
                watch.event.set()

    async def watch(self, path: str) -> "_Watch":
        watch = _Watch(path, self._watches)
        self._watches.setdefault(path, set()).add(watch)
        return watch

    async def sync(self) -> None:
        """Nobody else writes: reads are always fresh."""

    async def session_lost(self) -> None:
        """Never returns: the process is the session."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        async with self._turn:
            if not self._closed:
                self._closed = True
                self._tell(self._tree.apply(self._tree.expiry(SESSION)))
                await self._disk.offload(self._database.close)


class _Watch:
    def __init__(self, path: str, watches: dict[str, set["_Watch"]]) -> None:
        self._path = path
        self._watches = watches
        self.event = asyncio.Event()

    async def changed(self) -> None:
        await self.event.wait()
        self.event.clear()

    def close(self) -> None:
        peers = self._watches.get(self._path, set())
        peers.discard(self)
        if not peers:
            self._watches.pop(self._path, None)


def _durable(plan: Plan, tree: Tree) -> Plan:
    """The part of a plan that a restart must find again."""

    def ephemeral(path: str, node: Node | None) -> bool:
        node = node or tree.get(path)
        return node is None or node.session != PERSISTENT

    return Plan({path: node for path, node in plan.items() if not ephemeral(path, node)})


class _Database:
    """The SQLite file. Every method blocks, and is called by one thread at a time."""

    def __init__(self, path: str, *, journal: str) -> None:
        self.path = path
        # Calls come from any thread of the disk's pool, but never two at once.
        self._sql = self._guard(lambda: sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0))
        try:
            for pragma in (
                "locking_mode=EXCLUSIVE",  # a second broker on this directory is refused; no shared memory file
                f"journal_mode={journal}",
                "synchronous=FULL",
                "trusted_schema=OFF",
                "mmap_size=0",  # a mapped file turns an I/O error into SIGBUS
            ):
                self._run(f"PRAGMA {pragma}")
        except BaseException:
            self._sql.close()
            raise

    def _guard(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.Error as error:
            _translate(error, self.path)

    def _run(self, statement: str) -> list[tuple[object, ...]]:
        return self._guard(lambda: self._sql.execute(statement).fetchall())

    def create(self) -> None:
        self._run("BEGIN IMMEDIATE")
        self._run(f"PRAGMA application_id={APPLICATION_ID}")
        self._run(f"PRAGMA user_version={FORMAT}")
        columns = "path TEXT PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL, crc INTEGER NOT NULL"
        self._run(f"CREATE TABLE node ({columns}) STRICT, WITHOUT ROWID")
        self._run("COMMIT")

    def check(self) -> None:
        """Raise StoreDamaged unless the file is sound."""
        problems = [str(row[0]) for row in self._run("PRAGMA quick_check(3)")]
        if problems != ["ok"]:
            _damaged(self.path, "; ".join(problems))

    def read(self) -> dict[str, Node]:
        nodes: dict[str, Node] = {}
        rows = self._guard(lambda: self._sql.execute("SELECT path, version, value, crc FROM node").fetchall())
        for path, version, value, crc in rows:
            if crc != _crc(path, version, value):
                _damaged(self.path, f"node {path} does not match its checksum")
            nodes[path] = Node(value, version)
        return nodes

    def write(self, plan: Plan) -> None:
        self._guard(lambda: self._write(plan))

    def _write(self, plan: Plan) -> None:
        kept = [(p, n.version, n.value, _crc(p, n.version, n.value)) for p, n in plan.items() if n is not None]
        gone = [(path,) for path, node in plan.items() if node is None]
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            self._sql.executemany(_UPSERT, kept)
            self._sql.executemany("DELETE FROM node WHERE path = ?", gone)
            self._sql.execute("COMMIT")
        except sqlite3.Error:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            raise

    def close(self) -> None:
        self._guard(self._sql.close)


def _crc(path: str, version: int, value: bytes) -> int:
    return crc32c(value, crc32c(f"{path}\0{version}\0".encode()))


def _open(disk: Disk, root: str) -> tuple[_Database, Tree]:
    disk.make_dir(FOLDER)
    if not disk.exists(FILE):
        if disk.exists(f"{FILE}-wal"):
            _damaged(f"{root}/{FILE}", "it is missing, while its journal is there")
        _create(disk, root)
    disk.sync_dir(FOLDER)  # also for who made it, and ended before this
    path = f"{root}/{FILE}"
    _check_header(disk, path)
    database = _Database(path, journal="WAL")
    try:
        database.check()
        tree = Tree(database.read())
        if orphans := tree.orphans():
            _damaged(path, f"node {orphans[0]} has no parent")
    except BaseException:
        database.close()
        raise
    return database, tree


def _check_header(disk: Disk, path: str) -> None:
    """Refuse what is not ours before SQLite touches it: to SQLite, an empty file is as good as a new one."""
    file = disk.open(FILE)
    try:
        header = file.read(HEADER.size, 0)
    finally:
        file.close()
    magic, version, application = HEADER.unpack(header) if len(header) == HEADER.size else (b"", 0, 0)
    if magic != b"SQLite format 3\0" or application != APPLICATION_ID:
        _damaged(path, "it is empty, or not a metadata store of Runnel")
    if version != FORMAT:
        _damaged(path, f"its format is {version}, this Runnel reads {FORMAT}")


def _create(disk: Disk, root: str) -> None:
    """Make the file whole under another name, then rename it (rule 2)."""
    for leftover in (NEW_FILE, f"{NEW_FILE}-journal"):
        if disk.exists(leftover):
            disk.remove(leftover)
    disk.open(NEW_FILE, create=True).close()  # readable by the owner only; SQLite gives its journals the same mode
    database = _Database(f"{root}/{NEW_FILE}", journal="DELETE")
    try:
        database.create()
    finally:
        database.close()
    disk.rename(NEW_FILE, FILE)


def _damaged(path: str, what: str) -> NoReturn:
    advice = "Nothing was deleted. Put back a copy of this file, or keep the data directory as it is and ask for help"
    raise StoreDamaged(f"the metadata store {path} can't be used: {what}. {advice}.")


def _translate(error: sqlite3.Error, path: str) -> NoReturn:
    detail = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    code = detail & 0xFF  # the low byte is the kind of error, the rest says where
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        advice = "stop it, or name another --data"
        raise DataInUse(f"the metadata store {path} is in use by another broker: {advice}") from error
    if code == sqlite3.SQLITE_FULL or detail == sqlite3.SQLITE_IOERR_WRITE:  # a write was refused and rolled back
        advice = "nothing was changed; see that the disk has room and can be written"
        raise StorageFailed(f"the metadata store {path} could not be written ({error}): {advice}") from error
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        _damaged(path, str(error))
    # A failed sync may have lost what an earlier one seemed to keep: only a restart tells what is on disk.
    advice = "the broker ends, and reads it anew when started"
    raise Fatal(f"the metadata store {path} failed ({error}): {advice}") from error
