"""One partition thought over: who may lead it, who is in sync, who is eligible. Pure.

Rule 1: a broker leads and is in sync while it serves. One that does not leaves the ISR, unless nobody who serves would
        remain: the last members know what was committed, so they are waited for.
Rule 2: below min.insync.replicas nothing is committed (KIP-966). So who leaves the ISR then, misses nothing that was
        committed: it goes to the ELR, and may lead. At min.insync.replicas the ELR is empty: what is committed from
        then on, its members don't have.
Rule 3: a leader comes from the ISR, else from the ELR, in the order of the replicas. A broker that is stopping leads on
        what nobody else can. Any other replica leads only if the topic allows it, or an operator asks for it: unclean.
Rule 4: whose copy is lost is neither in the ISR nor in the ELR, even if that leaves nobody.
Rule 5: every other leader, and none, begins a new leader epoch; every change begins a new partition epoch. A change
        that takes a replica away begins a new leader epoch as well: its broker removes the data once it sees that.
        Added again meanwhile, it could be in sync by what it asked before, and then have nothing. The same holds for
        a copy that is found damaged while its broker serves: it is cut, and what it told before is not true any more.
"""

from collections.abc import Iterable
from typing import NamedTuple, Self

from msgspec.structs import replace

from runnel.cluster.config_rules import topic_config, topic_defaults
from runnel.cluster.image import NO_LEADER, Broker, BrokerState, Delta, Image, Partition, Topic
from runnel.cluster.placement import Replicas
from runnel.model.ids import BrokerId, Epoch, PartitionKey, TopicId
from runnel.model.topic_config import FlushMode, TopicConfig


class Living(NamedTuple):
    """Who can lead."""

    serving: frozenset[BrokerId]
    stopping: frozenset[BrokerId]

    @classmethod
    def of(cls, brokers: Iterable[Broker]) -> Self:
        everyone = list(brokers)
        return cls(
            frozenset(broker.id for broker in everyone if broker.serving),
            frozenset(broker.id for broker in everyone if broker.state is BrokerState.STOPPING),
        )

    def all_alive(self, partition: Partition) -> bool:
        """Whether a partition has a leader, and all who are in sync, though some of them may be stopping."""
        alive = self.serving | self.stopping if self.stopping else self.serving
        return partition.leader in alive and alive.issuperset(partition.isr)


class Rules(NamedTuple):
    """What a topic's settings say about its leaders."""

    minimum: int  # min.insync.replicas
    unclean: bool  # unclean.leader.election.enable
    synced: bool  # what a replica holds, survives a crash

    @classmethod
    def of(cls, config: TopicConfig) -> Self:
        return cls(
            config.min_insync_replicas, config.unclean_leader_election_enable, config.flush_mode is FlushMode.COMMIT
        )


class RuleBook:
    """The rules of every topic of an image, on one broker (None: on any)."""

    def __init__(self, image: Image, base: TopicConfig, broker: BrokerId | None = None) -> None:
        self._image = image
        self._base = base
        self._broker = broker
        self._usual = Rules.of(topic_defaults(image, broker, base))
        self._known: dict[frozenset[tuple[str, str]], Rules] = {}  # thousands of topics are set alike

    def of(self, topic: Topic) -> Rules:
        if not topic.config:
            return self._usual
        settings = frozenset(topic.config.items())
        if settings not in self._known:
            self._known[settings] = Rules.of(topic_config(self._image, topic, self._broker, self._base))
        return self._known[settings]


class Draft:
    """A partition while it is thought over. Change it, `settle` it, and take the `result`."""

    __slots__ = (
        "_lost",
        "_rules",
        "_was",
        "adding",
        "fence",
        "isr",
        "leader",
        "removing",
        "renew",
        "replicas",
        "unclean",
    )

    def __init__(self, partition: Partition, rules: Rules) -> None:
        self._was = partition
        self._rules = rules
        self._lost: set[BrokerId] = set()
        self.leader = partition.leader
        self.replicas = partition.replicas
        self.isr = partition.isr
        self.adding = partition.adding
        self.removing = partition.removing
        self.fence = False  # whether what was decided on the partition as it was is refused from now on
        self.renew = False  # whether a new leader epoch begins, whoever leads
        self.unclean = False  # whether the leader may lack what was committed

    def leave(self, broker: BrokerId) -> None:
        """This broker is not in sync any more; it has all that it had (rule 2)."""
        self.isr = tuple(member for member in self.isr if member != broker)

    def lose(self, broker: BrokerId) -> None:
        """What this broker has can't be trusted (rule 4)."""
        self._lost.add(broker)
        self.leave(broker)

    @property
    def knowing(self) -> set[BrokerId]:
        """Who has all that was committed."""
        return {*self._was.isr, *self._was.elr} - self._lost

    @property
    def elr(self) -> Replicas:
        """Rule 2."""
        if self.unclean or len(self.isr) >= min(self._rules.minimum, len(self.replicas)):
            return ()
        return tuple(broker for broker in self.replicas if broker in self.knowing and broker not in self.isr)

    def settle(self, living: Living, *, unclean: bool = False) -> None:
        """Rules 1 and 3; `unclean`: an operator prefers any leader to none."""
        self.isr = tuple(member for member in self.isr if member in living.serving) or self.isr
        self._finish_move()
        if self.leader in living.serving and self.leader in self.isr:
            return
        self._elect(living, unclean or self._rules.unclean)

    def _finish_move(self) -> None:
        """A reassignment is done once everyone it is meant for is in sync."""
        if not self.adding and not self.removing:
            return
        target = tuple(broker for broker in self.replicas if broker not in self.removing)
        if set(target) <= set(self.isr):
            self.replicas, self.isr, self.adding, self.removing = target, target, (), ()

    def _elect(self, living: Living, unclean: bool) -> None:
        able = [broker for broker in self.replicas if broker in living.serving]
        elr = self.elr
        if (leader := next((broker for broker in able if broker in self.isr), None)) is not None:
            self.leader = leader
        elif (leader := next((broker for broker in able if broker in elr), None)) is not None:
            self.leader, self.isr = leader, (leader,)
        elif self.leader in living.stopping and self.leader in self.isr:
            pass
        elif able and unclean:
            self.leader, self.isr, self.unclean = able[0], (able[0],), True
        else:
            self.leader = NO_LEADER

    def result(self) -> Partition:
        """The partition as it shall be; the very same one if nothing changes (rule 5)."""
        was, elr = self._was, self.elr
        same = not self.renew and (was.leader, was.replicas, was.adding, was.removing) == (
            self.leader, self.replicas, self.adding, self.removing,
        )  # fmt: skip
        if same and not self.fence and set(was.isr) == set(self.isr) and set(was.elr) == set(elr):
            return was
        isr = tuple(broker for broker in self.replicas if broker in self.isr)
        goes_on = not self.renew and self.leader == was.leader and set(was.replicas) <= set(self.replicas)
        epoch = was.leader_epoch if goes_on else Epoch(was.leader_epoch + 1)
        isr = self.replicas if isr == self.replicas else isr  # one tuple for both: there are many partitions
        return Partition(
            self.leader, epoch, Epoch(was.epoch + 1), self.replicas, isr, elr, self.adding, self.removing
        )  # fmt: skip


class Unclean(NamedTuple):
    """A replica leads that may lack what was committed."""

    topic: str
    key: PartitionKey
    leader: BrokerId


class Changes:
    """Changed partitions of an image, gathered into one delta."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._rows: dict[TopicId, list[Partition]] = {}
        self.unclean: list[Unclean] = []

    def __contains__(self, topic_id: TopicId) -> bool:
        return topic_id in self._rows

    def partition(self, topic: Topic, number: int) -> Partition:
        """As it is by now."""
        return self._rows.get(topic.id, topic.partitions)[number]

    def put(self, topic: Topic, number: int, draft: Draft) -> Partition:
        partition = draft.result()
        if partition is not self.partition(topic, number):
            self._rows.setdefault(topic.id, list(topic.partitions))[number] = partition
            if draft.unclean:
                self.unclean.append(Unclean(topic.name, PartitionKey(topic.id, number), draft.leader))
        return partition

    @property
    def delta(self) -> Delta:
        return Delta(topics={topic_id: self._changed(topic_id, rows) for topic_id, rows in self._rows.items()})

    def _changed(self, topic_id: TopicId, rows: list[Partition]) -> Topic:
        topic = self._image.topics[topic_id]
        return replace(topic, partitions=tuple(rows), version=topic.version + 1)
