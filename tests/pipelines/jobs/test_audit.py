"""What an audit is asked for, which offsets it looks at, and why a log has gaps: with a real broker, without Spark."""

from collections.abc import Iterator

import pytest
from tests.pipelines.connector.topics import Topic

from runnel.pipelines.connector.gateway import Gateway, close_all, gateway
from runnel.pipelines.errors import BadOption, NothingThere
from runnel.pipelines.jobs.audit import job as audit
from runnel.pipelines.jobs.audit.gaps import LogGaps
from runnel.pipelines.jobs.audit.job import (
    BROKEN,
    CLEAN,
    UNPROVEN,
    AuditConf,
    LackingFile,
    Report,
    fresh_accounts,
    lines,
)
from runnel.pipelines.jobs.audit.judge import Account, Kind, Reason, Scope
from runnel.pipelines.jobs.audit.offsets import Run
from runnel.testing.process import BrokerProcess


@pytest.fixture
def gate(broker: BrokerProcess) -> Iterator[Gateway]:
    yield gateway((broker.kafka,))
    close_all()


def scopes(gate: Gateway, topic: str, **conf: str) -> list[tuple[int, int]]:
    asked = AuditConf(**conf)  # type: ignore[arg-type]
    return [(each.scope.first, each.scope.end) for each in fresh_accounts(gate, asked, [topic])]


def test_the_range_is_fixed_by_offsets_times_and_groups(gate: Gateway) -> None:
    topic = Topic(gate, "audit-range", partitions=2, retention_ms="-1")
    topic.send({0: 10, 1: 5}, time_ms=1_700_000_000_000)
    gate.commit("audit-group", {topic.at(0): 7, topic.at(1): 2})
    assert scopes(gate, topic.name) == [(0, 10), (0, 5)]
    assert scopes(gate, topic.name, end="committed", group="audit-group") == [(0, 7), (0, 2)]
    assert scopes(gate, topic.name, first="2023-11-14T22:13:20.004Z", end="-2") == [(4, 8), (4, 4)]
    assert scopes(gate, topic.name, end='{"audit-range": {"0": 3, "1": 4}}') == [(0, 3), (0, 4)]


def test_what_the_log_has_no_more_is_said(gate: Gateway) -> None:
    topic = Topic(gate, "audit-trimmed")
    topic.send(10)
    topic.trim(4)
    (account,) = fresh_accounts(gate, AuditConf(first='{"audit-trimmed": {"0": 0}}'), [topic.name])
    assert (account.scope.first, account.scope.end) == (4, 10)
    assert account.notes == ["the log begins at 4: what was before is not looked at"]


def test_a_topic_that_is_not_there_is_said(gate: Gateway) -> None:
    with pytest.raises(NothingThere, match="audit-nowhere"):
        fresh_accounts(gate, AuditConf(), ["audit-nowhere"])


def test_why_the_log_has_gaps(gate: Gateway) -> None:
    topic = Topic(gate, "audit-gaps")
    topic.send(3)
    topic.transact([b"a", b"b"], commit=False)  # 3, 4, marker 5
    topic.transact([b"c"], commit=True)  # 6, marker 7
    gaps = LogGaps(gate, topic.at(0), compacted=False)
    assert gaps([Run(3, 5), Run(7, 7)]) == {Reason.ABORTED: [Run(3, 4)], Reason.MARKER: [Run(5, 5), Run(7, 7)]}


def test_what_the_log_has_and_a_reader_left_out_is_found(gate: Gateway) -> None:
    topic = Topic(gate, "audit-unread")
    topic.send(5)
    assert LogGaps(gate, topic.at(0), compacted=False)([Run(2, 3)]) == {Reason.UNREAD: [Run(2, 3)]}


def test_which_topics_are_compacted(gate: Gateway) -> None:
    Topic(gate, "audit-compacted", cleanup_policy="compact")
    Topic(gate, "audit-plain")
    assert audit.compacted_topics(gate, ["audit-compacted", "audit-plain"]) == {"audit-compacted"}


@pytest.mark.parametrize(
    "conf",
    [
        AuditConf(), AuditConf(topics=("t",)), AuditConf(replayed="r"), AuditConf(alone=True),
        AuditConf(lake="l", alone=True, replayed="r"), AuditConf(lake="l", where="x"),
    ],
)  # fmt: skip
def test_what_can_not_be_meant_is_refused(conf: AuditConf) -> None:
    with pytest.raises(BadOption):
        audit._check(conf)


def account(**found: list[Run]) -> Account:
    return Account(Scope("t", 0, 0, 9), found={Kind(kind): runs for kind, runs in found.items()})


def test_the_verdict() -> None:
    assert Report("a", "b", [account()]).verdict == CLEAN
    assert Report("a", "b", [account(), account(unproven=[Run(1, 2)])]).verdict == UNPROVEN
    assert Report("a", "b", [account(unproven=[Run(1, 2)], lost=[Run(5, 5)])]).verdict == BROKEN
    assert Report("a", "b", [account()], [LackingFile("f", "t", 1, 0, 0)]).verdict == BROKEN


def test_what_is_said_of_it() -> None:
    report = Report("a", "b", [account(lost=[Run(1, 2), Run(5, 5)])], [LackingFile("f", "t", 3, 1, 5)])
    assert list(lines(report)) == ["file f is gone: 3 rows of t, offsets 1-5", "t-0: lost 3: 1-2, 5"]
    told = report.as_json()
    assert told["verdict"] == "broken"
    assert told["partitions"][0]["findings"] == [
        {"kind": "lost", "count": 3, "runs": [[1, 2], [5, 5]], "runs_total": 2}
    ]
