"""`runnel pipeline audit`: proves that nothing is lost, doubled or out of order between two points, or says where.

    log against lake        what topics hold now, against what was archived of them
    topic against topic     what topics hold, against a topic that a replay filled (by the headers of its messages)
    lake against topic      the same, with the lake as what ought to be
    lake alone              the lake against what its own commits say; needs no broker

Rule 1: the range is fixed first: both sides are asked for the same offsets, however long it takes.
Rule 2: what `judge` finds is all that counts; nothing is judged here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from runnel.client.admin import Admin
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import READ_COMMITTED
from runnel.client.positions import Bounds, resolve
from runnel.pipelines.conf import DEFAULT_BROKERS
from runnel.pipelines.connector.gateway import Gateway, gateway
from runnel.pipelines.connector.reading.edges import Edge, offsets_edge, time_edge
from runnel.pipelines.connector.reading.options import Topics
from runnel.pipelines.errors import BadOption, NothingThere
from runnel.pipelines.jobs.audit.gaps import LogGaps
from runnel.pipelines.jobs.audit.judge import Account, Judge, Kind, Scope, judge_alone
from runnel.pipelines.jobs.audit.offsets import Run
from runnel.pipelines.jobs.audit.sides import (
    Disorder,
    LakeSide,
    LogSide,
    ReplayedSide,
    Side,
    details,
    disorder,
    pairs,
    single,
    within,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLEAN, BROKEN, UNPROVEN = 0, 1, 3
NO_END = 1 << 62
NOTES_MAX = 5  # of one partition


@dataclass(frozen=True, slots=True)
class AuditConf:
    """What is held against what."""

    brokers: str = DEFAULT_BROKERS
    topics: tuple[str, ...] = ()  # none: those of the lake
    lake: str | None = None
    version: int | None = None
    alone: bool = False  # the lake and nothing else
    replayed: str | None = None  # a topic that a replay filled
    first: str = "earliest"  # or latest, committed, -N, JSON of offsets, a time
    end: str = "latest"
    group: str = ""  # whose offsets `committed` means
    where: str | None = None  # the rows of the lake that count


@dataclass(frozen=True, slots=True)
class LackingFile:
    """A file that the lake names and does not have."""

    name: str
    topic: str
    rows: int
    first: int
    last: int


@dataclass(slots=True)
class Report:
    """What an audit found."""

    left: str
    right: str
    accounts: list[Account] = field(default_factory=list)
    files: list[LackingFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> int:
        kinds = {kind for account in self.accounts for kind in account.found}
        if self.files or kinds - {Kind.UNPROVEN}:
            return BROKEN
        return UNPROVEN if kinds else CLEAN

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": {CLEAN: "clean", BROKEN: "broken", UNPROVEN: "unproven"}[self.verdict],
            "left": self.left,
            "right": self.right,
            "partitions": [account.as_json() for account in self.accounts],
            "files": [asdict(file) for file in self.files],
            "notes": self.notes,
        }


def run(spark: "SparkSession", conf: AuditConf) -> Report:
    """Audit, once."""
    _check(conf)
    if conf.alone:
        return _lake_alone(spark, conf)
    if conf.lake is not None and conf.replayed is not None:
        return _lake_and_topic(spark, conf)
    return _log_and_other(spark, conf)


def _check(conf: AuditConf) -> None:
    if conf.alone and (conf.lake is None or conf.replayed is not None):
        raise BadOption("alone", "true", "it audits a lake and nothing else: name the lake, and no replayed topic")
    if conf.lake is None and conf.replayed is None:
        raise BadOption("lake", "", "name the lake, or the topic that a replay filled, or both")
    if conf.lake is None and not conf.topics:
        raise BadOption("topic", "", "name the topics that were replayed")
    if conf.where is not None and (conf.lake is None or conf.replayed is None):
        raise BadOption("where", conf.where, "it chooses what of a lake was replayed: name both")


# --- a log on the left
def _log_and_other(spark: "SparkSession", conf: AuditConf) -> Report:
    gate = gateway(tuple(conf.brokers.split(",")))
    lake = LakeSide(spark, conf.lake, conf.version) if conf.lake is not None else None
    topics = conf.topics or (tuple(sorted({file["partition.topic"] for file in lake.files()})) if lake else ())
    accounts = {_where(each.scope): each for each in fresh_accounts(gate, conf, topics)}
    scopes = [each.scope for each in accounts.values()]
    left = LogSide(spark, conf.brokers, {_where(s): s.first for s in scopes}, {_where(s): s.end for s in scopes})
    right: Side = lake if lake is not None else _replayed(spark, conf, gate)
    compacted = compacted_topics(gate, {scope.topic for scope in scopes})
    judges = {where: _judge(account, left, right, gate, compacted) for where, account in accounts.items()}
    for place, found in pairs(left.rows(), within(right.rows(), scopes)):
        judges.pop(TopicPartition(*place)).judge(found)
    for judge in judges.values():
        judge.judge([])  # neither side has anything of it
    report = Report(left.name, right.name, list(accounts.values()))
    report.notes = [f"no topic {each!r} in the cluster: not looked at" for each in topics if _gone(each, scopes)]
    _finish(report, right, scopes)
    return report


def _gone(topic: str, scopes: Sequence[Scope]) -> bool:
    return all(scope.topic != topic for scope in scopes)


def _judge(account: Account, left: Side, right: Side, gate: Gateway, compacted: set[str]) -> Judge:
    scope = account.scope
    gaps = LogGaps(gate, _where(scope), compacted=scope.topic in compacted)
    return Judge(account, lambda n: details(left, scope, n), lambda n: details(right, scope, n), gaps)


def _finish(report: Report, right: Side, scopes: Sequence[Scope] | None) -> None:
    """What is seen on the right alone: its order, or its files."""
    if isinstance(right, ReplayedSide):
        accounts = {_where(each.scope): each for each in report.accounts}
        for wrong in disorder(within(right.rows(), scopes)):
            account = accounts.get(TopicPartition(wrong.topic, wrong.partition))
            if account is not None:
                _add_disorder(account, wrong)
    elif isinstance(right, LakeSide):
        report.files = lacking_files(right)


def _add_disorder(account: Account, wrong: Disorder) -> None:
    account.add(Kind.DISORDER, [Run(wrong.offset, wrong.offset)])
    if len(account.notes) < NOTES_MAX:
        account.notes.append(f"{wrong.offset} is behind a later one, at {wrong.at_offset} of partition {wrong.at}")


# --- a lake on the left
def _lake_and_topic(spark: "SparkSession", conf: AuditConf) -> Report:
    assert conf.lake is not None
    left = LakeSide(spark, conf.lake, conf.version, _of_topics(conf))
    right = _replayed(spark, conf, gateway(tuple(conf.brokers.split(","))))
    report = Report(left.name, right.name)
    rows = right.rows()
    if conf.topics:
        rows = rows.where(rows["topic"].isin(*conf.topics))
    for (topic, partition), found in pairs(left.rows(), rows):
        scope = Scope(topic, partition, 0, NO_END)
        judge = Judge(Account(scope), _rows_of(left, scope), _rows_of(right, scope))
        report.accounts.append(judge.judge(found))
    _finish(report, right, None)
    report.files = lacking_files(left)
    return report


def _rows_of(side: Side, scope: Scope) -> Any:
    return lambda number: details(side, scope, number)


def _of_topics(conf: AuditConf) -> str | None:
    named = f"topic IN ({', '.join(repr(topic) for topic in conf.topics)})" if conf.topics else None
    parts = [f"({part})" for part in (named, conf.where) if part is not None]
    return " AND ".join(parts) or None


# --- a lake alone
def _lake_alone(spark: "SparkSession", conf: AuditConf) -> Report:
    assert conf.lake is not None
    lake = LakeSide(spark, conf.lake, conf.version, _of_topics(conf))
    report = Report(f"commits of {conf.lake}", lake.name, files=lacking_files(lake))
    told = {place: each for place, each in lake.archived().items() if not conf.topics or place[0] in conf.topics}
    seen = set()
    for (topic, partition), found in single(lake.rows()):
        seen.add((topic, partition))
        scope = Scope(topic, partition, 0, NO_END)
        commits = told.get((topic, partition), [])
        account = Account(scope, left=sum(each.rows for each in commits))
        report.accounts.append(judge_alone(account, found, _rows_of(lake, scope), commits))
    for place in sorted(set(told) - seen):
        account = Account(Scope(*place, 0, NO_END), left=sum(each.rows for each in told[place]))
        report.accounts.append(judge_alone(account, [], lambda _: [], told[place]))
    return report


def lacking_files(lake: LakeSide) -> list[LackingFile]:
    """The files that are gone, with what the log tells of them."""
    return [
        LackingFile(f["path"], f["partition.topic"], f["num_records"], f["min.offset"], f["max.offset"])
        for f in lake.files()
        if f["path"] in lake.lacking
    ]


# --- which offsets
def fresh_accounts(gate: Gateway, conf: AuditConf, topics: Iterable[str]) -> list[Account]:
    """The offsets of each partition that are looked at, fixed now; and what is to be said of them."""
    partitions = gate.partitions(Topics(names=tuple(topics)))
    if not partitions:
        raise NothingThere(f"none of the topics {', '.join(topics) or '(none)'} exists: name some that do")
    bounds = gate.bounds(partitions, READ_COMMITTED)
    edges = _edge("from", conf.first), _edge("to", conf.end)
    firsts, ends = (_placed(gate, edge, bounds, conf.group) for edge in edges)
    return [_fresh(where, bounds[where], firsts[where], ends[where]) for where in partitions]


def _fresh(where: TopicPartition, kept: Bounds, first: int, end: int) -> Account:
    low = max(first, kept.start)
    account = Account(Scope(where.topic, where.partition, low, max(low, min(end, kept.end))))
    if first < kept.start:
        account.notes.append(f"the log begins at {kept.start}: what was before is not looked at")
    if end > kept.end:
        account.notes.append(f"the log ends at {kept.end}: what is to come is not looked at")
    return account


def _edge(option: str, text: str) -> Edge:
    by_time = text[:1].isdecimal() and "-" in text
    return time_edge(option, text, strict=False) if by_time else offsets_edge(option, text)


def _placed(
    gate: Gateway, edge: Edge, bounds: Mapping[TopicPartition, Bounds], group: str
) -> Mapping[TopicPartition, int]:
    return gate.run(resolve(gate.cluster, edge.of(bounds), group=group or None, isolation=READ_COMMITTED))


def compacted_topics(gate: Gateway, topics: Iterable[str]) -> set[str]:
    """Those from whose middle messages are removed."""
    found = gate.run(Admin(gate.cluster).configs(list(topics), ["cleanup.policy"]))
    return {topic for topic, entries in found.items() for entry in entries if "compact" in (entry.value or "")}


def _replayed(spark: "SparkSession", conf: AuditConf, gate: Gateway) -> ReplayedSide:
    assert conf.replayed is not None
    bounds = gate.bounds(gate.partitions(Topics(names=(conf.replayed,))), READ_COMMITTED)
    if not bounds:
        raise NothingThere(f"the topic {conf.replayed!r} does not exist: name the one that the replay filled")
    starts, ends = ({where: getattr(kept, edge) for where, kept in bounds.items()} for edge in ("start", "end"))
    return ReplayedSide(LogSide(spark, conf.brokers, starts, ends))


def _where(scope: Scope) -> TopicPartition:
    return TopicPartition(scope.topic, scope.partition)


def lines(report: Report) -> Iterator[str]:
    """What is said to people, beyond the table of partitions."""
    yield from report.notes
    for file in report.files:
        yield f"file {file.name} is gone: {file.rows} rows of {file.topic}, offsets {file.first}-{file.last}"
    for account in report.accounts:
        for kind, told in sorted(account.found.items()):
            shown = ", ".join(str(run) for run in told[:10]) + (", ..." if len(told) > 10 else "")
            yield f"{account.scope}: {kind} {sum(run.size for run in told)}: {shown}"
        yield from (f"{account.scope}: {note}" for note in account.notes)
