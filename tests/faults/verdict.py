"""What a run showed: the anomalies, what was injected, and how long clients had to wait. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.faults.nemesis import Injury

from runnel.testing.checker import Anomaly, check
from runnel.testing.history import History, Poll, Send, Status

LOST = ("lost-write", "vanished")
DUPLICATED = ("duplicate",)
REORDERED = ("nonmonotonic-send", "nonmonotonic-poll", "int-nonmonotonic-poll")
UNSEEN = ("unseen",)
GROUPS = ("commit-lost", "zombie-commit", "double-owner", "group-skip")
KILL, ORDERLY = "kill a broker", "stop a broker in order"


@dataclass
class Verdict:
    """The figures of one run, or of several put together."""

    seeds: list[str] = field(default_factory=list)
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    sent: int = 0
    unknown: int = 0  # neither acknowledged nor certainly refused
    read: int = 0
    commits: int = 0
    anomalies: list[Anomaly] = field(default_factory=list)
    failovers_s: list[float] = field(default_factory=list)  # a kill, to the first new ack of each partition it led
    handovers_s: list[float] = field(default_factory=list)  # an orderly stop, the same
    lag_s: float = 0.0  # the longest that an acknowledged message waited for a reader while nothing was wrong
    whole_s: list[float] = field(default_factory=list)  # from the end of the faults until every replica was in sync
    problems: list[str] = field(default_factory=list)  # whatever else must not be
    exits: Counter[str] = field(default_factory=Counter)  # how processes ended on their own

    def add(self, other: "Verdict") -> None:
        for name in ("seeds", "anomalies", "failovers_s", "handovers_s", "whole_s", "problems"):
            getattr(self, name).extend(getattr(other, name))
        for name in ("seconds", "acknowledged", "sent", "unknown", "read", "commits"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults.update(other.faults)
        self.exits.update(other.exits)
        self.lag_s = max(self.lag_s, other.lag_s)

    def count(self, names: Iterable[str]) -> int:
        return sum(anomaly.name in names for anomaly in self.anomalies)

    @property
    def good(self) -> bool:
        return not self.anomalies and not self.problems and self.acknowledged > 0

    def table(self) -> str:
        """For people."""
        known = (*LOST, *DUPLICATED, *REORDERED, *UNSEEN, *GROUPS)
        rows = [
            ("runs", f"{len(self.seeds)} ({self.seconds:.0f} s under load), seeds {', '.join(self.seeds)}"),
            ("faults injected", f"{self.faults.total()}"),
            *((f"  {kind}", f"{count}") for kind, count in sorted(self.faults.items())),
            ("messages acknowledged", f"{self.acknowledged} of {self.sent} sent ({self.unknown} of unknown fate)"),
            ("messages read", f"{self.read}, and {self.commits} commits of groups acknowledged"),
            ("lost", f"{self.count(LOST)}"),
            ("duplicated", f"{self.count(DUPLICATED)}"),
            ("reordered", f"{self.count(REORDERED)}"),
            ("unseen at the end", f"{self.count(UNSEEN)}"),
            ("groups: lost or zombie commits, skips", f"{self.count(GROUPS)}"),
            ("other anomalies", f"{sum(anomaly.name not in known for anomaly in self.anomalies)}"),
            ("other problems", f"{len(self.problems)}"),
            ("seconds without a leader: kill", spread(self.failovers_s)),
            ("seconds without a leader: orderly stop", spread(self.handovers_s)),
            ("worst lag of a reader, nothing wrong", f"{self.lag_s:.2f} s"),
            ("all replicas in sync again after", spread(self.whole_s, "runs")),
            (
                "ended on their own, started again",
                ", ".join(f"{k}: {n}" for k, n in sorted(self.exits.items())) or "none",
            ),
        ]
        return "\n".join(f"  {name:<42} {value}" for name, value in rows)


def spread(values: Sequence[float], of: str = "partitions") -> str:
    if not values:
        return "not measured"
    return f"p50 {median(values):.2f} s, max {max(values):.2f} s ({len(values)} {of})"


def judge(history: History, injuries: Sequence[Injury], *, topic: str, seed: str, seconds: float) -> Verdict:
    """Everything that follows from what clients noted and from what was done to the cluster."""
    statuses = Counter(send.status for send in history.sends)
    return Verdict(
        seeds=[seed],
        seconds=seconds,
        faults=Counter(injury.kind for injury in injuries),
        acknowledged=statuses[Status.OK],
        sent=len(history.sends),
        unknown=statuses[Status.INFO],
        read=sum(len(found) for poll in history.polls if isinstance(poll, Poll) for found in poll.records.values()),
        commits=sum(commit.status is Status.OK for commit in history.commits),
        anomalies=check(history),
        failovers_s=waits(history, [i for i in injuries if i.alone and i.kind == KILL], topic),
        handovers_s=waits(history, [i for i in injuries if i.alone and i.kind == ORDERLY], topic),
        lag_s=worst_lag(history, injuries),
    )


def waits(history: History, injuries: Sequence[Injury], topic: str) -> list[float]:
    """For each partition whose leader fell: how long until a message that was sent after that was acknowledged."""
    sends: dict[str, list[Send]] = defaultdict(list)
    for send in history.sends:
        if send.status is Status.OK:
            sends[send.key].append(send)
    found = []
    for injury in injuries:
        for number in injury.led:
            acks = [send.ended for send in sends[f"{topic}-{number}"] if send.begun >= injury.begun]
            if acks:
                found.append(min(acks) - injury.begun)
    return found


def worst_lag(history: History, injuries: Sequence[Injury]) -> float:
    """How long a message was acknowledged and unread at most; time under faults does not count."""
    seen: dict[str, float] = {}
    for poll in history.polls:
        if isinstance(poll, Poll) and not poll.final and poll.group is None:
            for found in poll.records.values():
                for _, value in found:
                    seen[value] = min(poll.ended, seen.get(value, poll.ended))
    worst = 0.0
    for send in history.sends:
        at = seen.get(send.value)
        if send.status is not Status.OK or at is None or any(i.begun <= at <= i.ended for i in injuries):
            continue
        calm = max([send.ended, *(injury.ended for injury in injuries if injury.ended <= at)])
        worst = max(worst, at - calm)
    return worst
