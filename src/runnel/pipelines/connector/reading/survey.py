"""Asking the cluster what a reader's options mean now. `plan` draws the conclusions."""

from collections.abc import Iterable, Mapping

from runnel.client.errors import TopicMissing
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import READ_UNCOMMITTED
from runnel.client.positions import Bounds, From
from runnel.pipelines.connector.gateway import Gateway, gateway
from runnel.pipelines.connector.reading import plan
from runnel.pipelines.connector.reading.edges import Edge
from runnel.pipelines.connector.reading.losses import Losses
from runnel.pipelines.connector.reading.options import ReadOptions
from runnel.pipelines.connector.reading.plan import Offsets
from runnel.pipelines.connector.reading.ranges import Lost, Range
from runnel.pipelines.connector.reading.splits import split
from runnel.pipelines.errors import BadOption

MISSING_SHOWN = 5


class Survey:
    """One reader's view of the cluster, from the driver."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.losses = Losses(options.fail_on_data_loss, options.loss_log)

    @property
    def gate(self) -> Gateway:
        return gateway(self.options.brokers)

    # --- what there is
    def partitions(self) -> list[TopicPartition]:
        """What the options name and exists now."""
        return self.gate.partitions(self.options.topics)

    def all_partitions(self) -> list[TopicPartition]:
        """The same, where all that is named must exist: a query that begins would read less than it was told to."""
        found, topics = self.partitions(), self.options.topics
        there = {where.topic for where in found}
        if missing := [repr(name) for name in topics.names if name not in there]:
            raise TopicMissing(f"topic {', '.join(missing)} does not exist: check the name, or create it")
        if absent := [str(where) for where in topics.partitions if where not in set(found)]:
            raise BadOption("assign", ", ".join(absent[:MISSING_SHOWN]), "name partitions that exist")
        return found

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        return self.gate.bounds(partitions, self.options.isolation)

    def ends(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self.gate.ends(partitions, self.options.isolation)

    def place(self, edge: Edge, bounds: Mapping[TopicPartition, Bounds]) -> Offsets:
        """The offsets that an edge means now."""
        wanted = edge.of(bounds)
        at_time = self.gate.by_time(plan.times_of(wanted), self.options.isolation)
        stored: Offsets = {}
        if edge.uses(From.STORED):
            stored = self.gate.committed(self.options.group, bounds)
        return plan.placed(edge, bounds, at_time, stored)

    def finish(self, bounds: Mapping[TopicPartition, Bounds]) -> Offsets:
        """Where reading ends: what the options say, or all that is there now."""
        if self.options.end is None:
            return {where: held.end for where, held in bounds.items()}
        found = self.place(self.options.end, bounds)
        plan.check_end(self.options.end, found, bounds)
        return found

    # --- what is lost
    def rewound(self, start: Offsets, ends: Mapping[TopicPartition, int]) -> list[Lost]:
        """The beginnings that lie behind the end of their logs; where an open transaction begins is no such end."""
        behind = [where for where, end in ends.items() if start.get(where, 0) > end]
        really = self.gate.ends(behind, READ_UNCOMMITTED)
        return [Lost(w, really[w], start[w], plan.REWOUND) for w in behind if start[w] > really[w]]

    def tasks(self, wanted: list[Range], kept: Mapping[TopicPartition, int]) -> list[Range]:
        """These ranges without what is lost, which is told, and cut into tasks."""
        for lost in plan.expired(wanted, kept):
            self.losses(lost)
        return split(plan.left(wanted, kept), self.options.splitting, self.gate.sizes)
