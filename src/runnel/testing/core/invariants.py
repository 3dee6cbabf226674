"""What must hold of one partition at every step; the names are those of the TLA+ specifications of Kafka's replication.

The truth is kept beside the replicas: `committed` is what any leader ever called committed. Every check looks only at
what has just changed, so that it can be made at every step.

LogMatching                   two logs with the same epoch at an offset are the same up to there
LeaderCandidateCompleteness   every member of ISR and ELR holds all that is committed, durably where the mode says so
StrongISR                     whoever is stored as in sync counts for the leader's high watermark
OneLeader, OneController      at most one in an epoch
HighWatermark                 never above the log's end, never back in an epoch, never below two values
Readers                       nobody reads what is not committed
MinInsync                     what is committed is held by as many as min.insync.replicas asks for
Image                         what is stored fits: epochs rise, ISR and ELR are replicas, elections are clean, and with
                              enough in sync there is no ELR, which would keep anything from being committed
Acked                         what was acknowledged is committed, where it was said to be
NoDuplicates                  an idempotent producer's record is committed once, in its order
ProducerState                 what is remembered of producers is what the log says

A copy that was lost in a way its flush mode does not promise against (power, without syncs; a new disk) is excused
until its broker serves again, out of ISR and ELR. Where nothing but excused copies is left, or an operator allowed an
unclean election, the partition is `lossy` from then on: only what holds without any promise is checked.
"""

from collections.abc import Collection, Set
from typing import NamedTuple

from runnel.cluster.image import NO_LEADER, Partition
from runnel.model.ids import BrokerId
from runnel.testing.core.log import Entry, ModelLog


class Violation(Exception):
    """Something happened that must not."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name = name


class Leader(NamedTuple):
    """A leader as it sees itself."""

    broker: int
    epoch: int
    log: ModelLog
    high: int
    maximal: frozenset[BrokerId]
    replicas: tuple[BrokerId, ...]


class Truth:
    """All that is known for sure of one partition."""

    def __init__(self, name: str, image: Partition, *, minimums: Collection[int], unclean: bool) -> None:
        self.name = name
        self.minimum = min(minimums)  # the least that any leader or controller goes by
        self._minimum_max = max(minimums)
        self.unclean = unclean
        self.committed: list[Entry] = []
        self.image = image
        self.logs: dict[int, ModelLog] = {}
        self.excused: set[int] = set()
        self.lossy = False
        self.acknowledged = 0
        self._values: set[int] = set()
        self._written: dict[tuple[int, int], tuple[Entry, int]] = {}
        self._leaders: dict[int, int] = {}
        self._sequences: dict[int, int] = {}

    def violated(self, name: str, what: str) -> None:
        raise Violation(name, f"{self.name}: {what}")

    # --- logs

    def appended(self, broker: int, log: ModelLog, floor: int = 0) -> None:
        """The last entry of this log is new. Below `floor` its leader has nothing, so nobody compared it."""
        entries = log.entries
        offset = len(entries) - 1
        entry = entries[-1]
        before = entries[-2].epoch if offset > max(log.start, floor) else -1
        if before > entry.epoch:
            self.violated("LogMatching", f"broker {broker} has epoch {entry.epoch} after {before} at {offset}")
        known = self._written.setdefault((offset, entry.epoch), (entry, before))
        if known[0] != entry or (known[1] != before and -1 not in (known[1], before)):
            self.violated("LogMatching", f"broker {broker} has {entry} after {before} at {offset}, elsewhere {known}")

    def shortened(self, broker: int) -> None:
        """This broker's copy lost its end, or all of it."""
        if broker in self.image.isr or broker in self.image.elr:
            self._must_hold(broker, "LeaderCandidateCompleteness")

    def excuse(self, broker: int) -> None:
        """This broker's copy lost what nobody promised to keep."""
        self.excused.add(broker)

    def producers(self, broker: int, log: ModelLog) -> None:
        if log.producers != log.replay():
            self.violated("ProducerState", f"broker {broker} remembers other producers than its log shows")

    # --- leaders

    def leads(self, broker: int, epoch: int) -> None:
        if self._leaders.setdefault(epoch, broker) != broker:
            self.violated("OneLeader", f"brokers {self._leaders[epoch]} and {broker} lead in epoch {epoch}")

    def commits(self, leader: "Leader", before: int) -> None:
        """A leader's high watermark moved."""
        broker, log, high = leader.broker, leader.log, leader.high
        if high > len(log.entries):
            self.violated("HighWatermark", f"broker {broker} has {high}, above its end {len(log.entries)}")
        if high < before:
            self.violated("HighWatermark", f"broker {broker} went back from {before} to {high}")
        if self.lossy:
            return
        self._agree(broker, log, high)
        self.counts(leader)
        if high > len(self.committed):
            self._grow(log.entries, high)
            for member in (*self.image.isr, *self.image.elr):
                self._must_hold(member, "LeaderCandidateCompleteness")
            self._enough_hold(leader)

    def counts(self, leader: "Leader") -> None:
        """Whoever is stored as in sync, the leader counts on; it may count on more."""
        now = self.image
        if now.leader == leader.broker and now.leader_epoch == leader.epoch and not leader.maximal.issuperset(now.isr):
            self.violated("StrongISR", f"{now.isr} are in sync, its leader counts on {sorted(leader.maximal)}")

    def _agree(self, broker: int, log: ModelLog, high: int) -> None:
        """What this copy has below `high` is what is committed there."""
        committed = self.committed
        for offset in range(max(log.verified, log.start), min(high, len(committed))):
            if log.entries[offset] != committed[offset]:
                self.violated(
                    "HighWatermark",
                    f"{committed[offset]} is committed at {offset}, broker {broker} has {log.entries[offset]}",
                )
        log.verified = max(log.verified, min(high, len(committed)))

    def _grow(self, entries: list[Entry], high: int) -> None:
        for entry in entries[len(self.committed) : high]:
            self.committed.append(entry)
            if entry.producer < 0:
                continue
            if entry.value in self._values:
                self.violated("NoDuplicates", f"{entry} is committed twice")
            self._values.add(entry.value)
            if entry.sequence <= self._sequences.get(entry.producer, -1):
                self.violated("NoDuplicates", f"{entry} is committed out of its producer's order")
            self._sequences[entry.producer] = entry.sequence

    def _enough_hold(self, leader: "Leader") -> None:
        """As far as the leader can know: an operator may have added replicas, or taken some away in a later epoch."""
        if leader.epoch != self.image.leader_epoch:
            return
        replicas, high = leader.replicas, leader.high
        # Whoever lost its copy after it had told what it holds, and is out of the ISR: the leader may not know it yet.
        unheard = leader.maximal - {*self.image.isr, *self.image.elr}
        excused = self.excused | unheard
        holders = sum(1 for broker in replicas if broker in excused or self._holds(broker, high))
        if holders < min(self.minimum, len(replicas)):
            self.violated("MinInsync", f"{holders} of {replicas} hold {high}, {self.minimum} must")

    def _holds(self, broker: int, high: int) -> bool:
        log = self.logs.get(broker)
        if log is None or log.held_offset < high:
            return high == 0
        return log.verified >= high or self._matches(log, high)

    def _matches(self, log: ModelLog, high: int) -> bool:
        begin = max(log.verified, log.start)
        if log.entries[begin:high] != self.committed[begin:high]:
            return False
        log.verified = high
        return True

    def _must_hold(self, broker: int, rule: str) -> None:
        high = len(self.committed)
        if self.lossy or broker in self.excused:
            return
        if not self._holds(broker, high):
            log = self.logs.get(broker)
            held = "nothing" if log is None else log.held_offset
            self.violated(rule, f"broker {broker} holds {held}, committed is {high} (ISR {self.image.isr})")

    # --- what clients see

    def exposes(self, broker: int, log: ModelLog, high: int) -> None:
        """This copy lets readers see all below `high`."""
        if high > len(log.entries):
            self.violated("HighWatermark", f"broker {broker} has {high}, above its end {len(log.entries)}")
        if self.lossy:
            return
        if high > len(self.committed):
            self.violated("Readers", f"broker {broker} shows {high}, committed is {len(self.committed)}")
        self._agree(broker, log, high)

    def acked(self, value: int, offset: int) -> None:
        """A producer was told that its record is committed here."""
        self.acknowledged += 1
        if self.lossy:
            return
        if offset >= len(self.committed) or self.committed[offset].value != value:
            self.violated("Acked", f"{value} was acknowledged at {offset}, committed is {len(self.committed)}")

    # --- what is stored

    def stored(self, image: Partition, restarted: Set[int], losers: Set[int]) -> None:
        """The store has a new image of this partition.

        `restarted` serve, in their present life; `losers` came back with less than they had, or said so.
        """
        before, self.image = self.image, image
        if image is not before:
            self._fits(before, image, losers)
            self._forgets(before, image, losers)
        members = {*image.isr, *image.elr}
        self._judge(image, members, restarted)
        self.excused -= restarted - members
        for member in sorted(members):
            self._must_hold(member, "LeaderCandidateCompleteness")

    def _fits(self, before: Partition, image: Partition, losers: Set[int]) -> None:
        members = {*image.isr, *image.elr}
        if image.epoch <= before.epoch or image.leader_epoch < before.leader_epoch:
            self.violated("Image", f"epochs went back from {before} to {image}")
        if not members <= set(image.replicas) or set(image.isr) & set(image.elr):
            self.violated("Image", f"ISR and ELR do not fit the replicas: {image}")
        if image.elr and len(image.isr) >= min(self._minimum_max, len(image.replicas)):
            self.violated("Image", f"enough are in sync, but with an ELR nothing is committed: {image}")
        if image.leader == NO_LEADER:
            return
        if image.leader not in image.isr:
            self.violated("Image", f"the leader is not in sync: {image}")
        if image.leader != before.leader and image.leader_epoch == before.leader_epoch:
            self.violated("Image", f"a new leader in the old epoch: {before} to {image}")
        if image.leader in losers or image.leader not in (*before.isr, *before.elr):
            self._judge_outsider(before, image)

    def _forgets(self, before: Partition, image: Partition, losers: Set[int]) -> None:
        """Below the minimum nobody is forgotten who has all that is committed (KIP-966)."""
        if len(image.isr) >= min(self.minimum, len(image.replicas)) or self.lossy:
            return
        resigned = {before.leader} - set(image.isr)
        gone = {*before.isr, *before.elr} & set(image.replicas) - {*image.isr, *image.elr} - losers - resigned
        if gone:
            self.violated("Image", f"{sorted(gone)} could lead, and is forgotten: {before} to {image}")

    def _judge_outsider(self, before: Partition, image: Partition) -> None:
        """Who was neither in sync nor eligible leads, or lost its copy: it joined just now, or this is unclean."""
        if self.unclean:
            self.lossy = True
        elif not self.lossy and image.leader not in self.excused and not self._holds(image.leader, len(self.committed)):
            self.violated("Image", f"an unclean election that nobody allowed: {before} to {image}")

    def _judge(self, image: Partition, members: Set[int], restarted: Set[int]) -> None:
        """An excused copy may be trusted again only where no better one is left."""
        trusted = {broker for broker in self.excused & members if broker in restarted}
        if not trusted or self.lossy:
            return
        better = members - self.excused
        if better:
            self.violated(
                "LeaderCandidateCompleteness", f"{sorted(trusted)} lost records, {sorted(better)} did not: {image}"
            )
        self.lossy = True
