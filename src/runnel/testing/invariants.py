"""What must hold of the brokers' state, whatever clients saw. Looked at whenever a broker is about to say something,
whenever the metadata changes, whenever a broker dies, and at the end.

    LogMatching           batches with the same offset and leader epoch are the same, and so is all before them
    completeness          what was told to be committed lies, durably, on every member of the ISR and of the ELR
    trust                 who lost its power, without syncs, is no member when it serves again, unless nobody has more
    one leader            a leader epoch of a partition has one leader; epochs grow
    high watermark        at most the end of the log, and in flush.mode commit at most what is synced; in one leader
                          epoch it never goes back on a copy that counts; nobody reads above the true one
    producers             what is known of idempotent producers is what the log says

The true high watermark of a partition is the highest that any replica ever told: what was said can't be taken back.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from runnel.cluster import nodes
from runnel.cluster.config_rules import topic_config
from runnel.cluster.image import NO_LEADER, Image, Topic
from runnel.cluster.image import Partition as PartitionImage
from runnel.cluster.tree import Tree
from runnel.log.producers import Producers
from runnel.model.ids import BrokerId, PartitionKey, TopicId
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.replica.partition import Partition
from runnel.testing.copies import Batch, Copy, folder_of, headers_of
from runnel.testing.disk import SimDisk


class Node(Protocol):
    """What is looked at of a simulated broker."""

    number: int
    disk: SimDisk

    def replicas(self) -> Iterable[Partition]:
        """Those that are open in its present life."""
        ...


@dataclass(slots=True)
class Truth:
    """What is known of one partition, by one who sees everything."""

    key: PartitionKey
    name: str
    config: TopicConfig
    image: PartitionImage
    deleted: bool = False
    committed: list[Batch] = field(default_factory=list)
    high: int = 0
    leaders: dict[int, int] = field(default_factory=dict)  # leader epoch -> broker
    known: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)  # (offset, epoch) -> the rest

    @property
    def durable(self) -> bool:
        return self.config.flush_mode is FlushMode.COMMIT

    @property
    def candidates(self) -> tuple[BrokerId, ...]:
        return (*self.image.isr, *self.image.elr)


class Invariants:
    """Sees the disks of all brokers and the tree of the store. Says what is wrong, and what just happened."""

    def __init__(
        self, brokers: Sequence[Node], tree: Tree, defaults: TopicConfig,
        violated: Callable[[str], None], happened: Callable[[str, Truth], None],
    ) -> None:  # fmt: skip
        self._brokers = {broker.number: broker for broker in brokers}
        self._tree = tree
        self._defaults = defaults
        self._violated = violated
        self._happened = happened
        self.truths: dict[PartitionKey, Truth] = {}
        self._copies: dict[tuple[int, PartitionKey], Copy] = {}
        self._checked: dict[tuple[int, PartitionKey], tuple[int, int]] = {}  # life of the copy, batches compared
        self._verified: dict[tuple[int, PartitionKey], tuple[int, int]] = {}  # life of the copy, committed ones found
        self._last: dict[tuple[int, PartitionKey], tuple[Partition, tuple[int, ...]]] = {}
        self._held: dict[tuple[int, PartitionKey], int] = {}  # by one that is dead, or has not opened it yet
        self._excused: dict[tuple[int, PartitionKey], int] = {}  # lost power in this broker epoch, and promised nothing

    def high_of(self, name: str) -> int:
        """The true high watermark of the partition that has this name now."""
        there = (truth.high for truth in self.truths.values() if truth.name == name and not truth.deleted)
        return max(there, default=0)

    # --- a broker is about to speak

    def look(self, broker: Node) -> None:
        for replica in broker.replicas():
            truth = self.truths.get(replica.key)
            if truth is None or truth.deleted:
                continue
            log, place = replica.log, (broker.number, replica.key)
            high, end, leads = replica.high_watermark, log.end_offset, replica.is_leader
            now = (replica.leader_epoch, leads, high, end, log.synced_offset)
            known, before = self._last.get(place, (replica, None))
            if now != before or known is not replica:
                self._last[place] = replica, now
                self._held.pop(place, None)
                self._check_offsets(truth, broker, replica, before if known is replica else None)
                self._match(truth, broker, end)
                if high > truth.high:
                    self._advance(truth, broker, high)

    def _check_offsets(self, truth: Truth, broker: Node, replica: Partition, before: tuple[int, ...] | None) -> None:
        log, high, who = replica.log, replica.high_watermark, f"{truth.name} on broker {broker.number}"
        if not log.start_offset <= high <= log.end_offset or log.synced_offset > log.end_offset:
            offsets = f"{log.start_offset} {log.synced_offset} {high} {log.end_offset}"
            self._violated(f"offsets-out-of-order: {who}: start, synced, high, end: {offsets}")
        goes_on = before is not None and before[:2] == (replica.leader_epoch, replica.is_leader)
        # A copy that nobody counts on may be cut at its damage, and fetched again.
        if goes_on and before is not None and high < before[2] and broker.number in truth.candidates:
            self._violated(f"high-watermark-back: {who} from {before[2]} to {high}")
        if replica.is_leader:
            self._lead(truth, broker.number, replica.leader_epoch)
            if truth.durable and high > log.synced_offset:
                self._violated(f"high-above-synced: {who}: {high} > {log.synced_offset}")

    def _lead(self, truth: Truth, leader: int, epoch: int) -> None:
        if truth.leaders.setdefault(epoch, leader) != leader:
            self._violated(f"two-leaders: {truth.name} epoch {epoch}: {truth.leaders[epoch]} and {leader}")

    def _match(self, truth: Truth, broker: Node, end: int) -> None:
        """LogMatching, for what is new on one replica."""
        copy = self._refreshed(truth, broker)
        place = broker.number, truth.key
        life, done = self._checked.get(place, (copy.life, 0))
        done = done if life == copy.life else 0
        compacted = truth.config.compacted
        while done < len(copy.batches) and (batch := copy.batches[done]).last < end:
            rest = batch.crc, batch.last, copy.batches[done - 1].epoch if done else -1
            which = batch.base, batch.epoch
            if not compacted and (done or not batch.base) and (was := truth.known.setdefault(which, rest)) != rest:
                detail = f"offset {batch.base} epoch {batch.epoch} is {rest}, elsewhere {was} (crc, last, epoch before)"
                self._violated(f"log-mismatch: {truth.name} on broker {broker.number}: {detail}")
            done += 1
        self._checked[place] = copy.life, done

    def _advance(self, truth: Truth, teller: Node, high: int) -> None:
        copy = self._refreshed(truth, teller)
        committed = [batch for batch in copy.batches if truth.high <= batch.base and batch.last < high]
        if not truth.config.compacted and (not committed or committed[-1].last + 1 != high):
            self._violated(f"high-watermark-inside: {truth.name} told {high}, batches end at {committed[-1:]}")
        truth.committed += committed
        truth.high = high
        for member in truth.candidates:
            self._complete(truth, member)

    # --- the metadata changed

    def changed(self, touched: set[str]) -> None:
        for path in sorted(touched):
            parent, _, name = path.rpartition("/")
            if parent == nodes.TOPICS_PATH:
                node = self._tree.get(path)
                if node is not None:
                    self._topic(nodes.read_topic(path, node))
                else:
                    self._deleted(TopicId(UUID(name)))
        for (member, key), epoch in list(self._excused.items()):
            if self._epoch_serving(member) > epoch:
                self._serves_again(self.truths[key], member)

    def _epoch_serving(self, member: int) -> int:
        path = nodes.broker_path(BrokerId(member))
        node = self._tree.get(path)
        broker = None if node is None else nodes.read_broker(path, node)
        return broker.epoch if broker is not None and broker.serving else -1

    def _serves_again(self, truth: Truth, member: int) -> None:
        """Who lost its power, and promised nothing, is trusted only where nobody has more."""
        if truth.deleted or member not in truth.candidates:
            del self._excused[member, truth.key]
        elif better := [other for other in truth.candidates if (other, truth.key) not in self._excused]:
            self._violated(f"trusted: {truth.name} on broker {member}, which lost its power; {better} did not")

    def _deleted(self, topic_id: TopicId) -> None:
        for key, truth in self.truths.items():
            if key.topic_id == topic_id:
                truth.deleted = True

    def _topic(self, topic: Topic) -> None:
        config = topic_config(Image("simulated"), topic, BrokerId(-1), self._defaults)
        for number, image in enumerate(topic.partitions):
            key = PartitionKey(topic.id, number)
            truth = self.truths.get(key)
            if truth is None:
                self.truths[key] = Truth(key, f"{topic.name}-{number}", config, image)
                self._lead(self.truths[key], image.leader, image.leader_epoch)
                if image.isr != image.replicas:
                    self._happened("made without all", self.truths[key])
            elif truth.image != image:
                before, truth.image, truth.config = truth.image, image, config
                self._partition(truth, before)

    def _partition(self, truth: Truth, before: PartitionImage) -> None:
        now = truth.image
        outside = {*now.isr, *now.elr} - {*now.replicas}
        if outside or {*now.isr} & {*now.elr} or now.epoch <= before.epoch or now.leader_epoch < before.leader_epoch:
            self._violated(f"bad-state: {truth.name} became {now}, it was {before}")
        if now.leader != NO_LEADER:
            self._lead(truth, now.leader, now.leader_epoch)
            if now.leader not in now.isr:
                self._violated(f"leader-outside: {truth.name} is led by {now.leader}, the ISR is {now.isr}")
        for member in truth.candidates:
            self._complete(truth, member)
        if now.leader != before.leader:
            self._happened("election", truth)
        elif now.isr != before.isr:
            self._happened("isr", truth)

    # --- what a replica holds

    def _complete(self, truth: Truth, member: int) -> None:
        """Every committed batch lies, durably, on this replica."""
        broker, place = self._brokers.get(member), (member, truth.key)
        if broker is None or place in self._excused or truth.deleted:
            return
        copy, bound = self._refreshed(truth, broker), self._bound(truth, broker)
        life, found = self._verified.get(place, (copy.life, 0))
        found = found if life == copy.life else 0
        while found < len(truth.committed):
            batch = truth.committed[found]
            if batch.last >= bound if truth.config.compacted else not copy.has(batch, bound):
                where = "ISR" if member in truth.image.isr else "ELR"
                detail = f"in the {where}, lacks {batch} of {truth.high} committed; holds {bound}, has {copy.end}"
                self._violated(f"incomplete: {truth.name} on broker {member}, {detail}")
                return
            found += 1
        self._verified[place] = copy.life, found

    def _bound(self, truth: Truth, broker: Node) -> int:
        place = broker.number, truth.key
        for replica in broker.replicas():
            if replica.key == truth.key:
                return replica.log.synced_offset if truth.durable else replica.log.end_offset
        return self._held.get(place, 0)

    def _refreshed(self, truth: Truth, broker: Node) -> Copy:
        copy = self._copies.setdefault((broker.number, truth.key), Copy())
        copy.refresh(broker.disk, folder_of(truth.key))
        return copy

    # --- a broker dies

    def dies(self, broker: Node) -> None:
        """Just before it is gone: what it holds is what it goes on holding."""
        for replica in broker.replicas():
            place = broker.number, replica.key
            durable = replica.config.flush_mode is FlushMode.COMMIT
            self._held[place] = replica.log.synced_offset if durable else replica.log.end_offset
        for place in [place for place in self._last if place[0] == broker.number]:
            del self._last[place]

    def lost_power(self, broker: Node) -> None:
        """Its disk is what survived: what was durable must be there."""
        path = nodes.broker_path(BrokerId(broker.number))
        registered = self._tree.get(path)
        epoch = nodes.read_broker(path, registered).epoch if registered is not None else -1
        for truth in self.truths.values():
            place = broker.number, truth.key
            self._copies.pop(place, None)
            self._checked.pop(place, None)
            self._verified.pop(place, None)
            if not truth.durable:
                self._excused[place] = epoch
            elif broker.number in truth.candidates:
                self._complete(truth, broker.number)

    # --- the end

    def final(self) -> None:
        """All is well again: every replica is the same, and knows the same producers."""
        for truth in self.truths.values():
            if truth.deleted:
                continue
            copies = {member: self._refreshed(truth, self._brokers[member]) for member in truth.image.replicas}
            ends = {member: copy.end for member, copy in copies.items()}
            if len({tuple(copy.batches) for copy in copies.values()}) > 1 and not truth.config.compacted:
                self._violated(f"replicas-differ: {truth.name}, ends {ends}")
            for member in truth.candidates:
                self._complete(truth, member)
            for member in truth.image.replicas:
                self._check_producers(truth, self._brokers[member])

    def _check_producers(self, truth: Truth, broker: Node) -> None:
        expected = Producers()
        for header, marker in headers_of(broker.disk, folder_of(truth.key)):
            if header.producer_id >= 0:
                expected.replay(header, 0, marker)
        for replica in broker.replicas():
            if replica.key == truth.key and _known(replica.log.producers) != _known(expected):
                detail = f"{_known(replica.log.producers)}, the log says {_known(expected)}"
                self._violated(f"producers-differ: {truth.name} on broker {broker.number} knows {detail}")


def _known(producers: Producers) -> dict[int, tuple[object, ...]]:
    """Everything but when it was learned."""
    return {number: producer._replace(seen_ms=0) for number, producer in producers._producers.items()}
