"""The course of one streaming query, in the driver: from batch to batch.

Rule 1: Spark asks for the end of the next batch once the one before is done for good; only then is its end committed to
        the group, where it shows how far the query is. Spark's checkpoint alone decides where a query goes on.
Rule 2: a query of Trigger.AvailableNow ends where the logs ended when it began, or where the options say.
Rule 3: progress that can't be committed is no failure of the query: it is told in the log, and tried again later.
"""

import logging
import time
from collections.abc import Callable
from uuid import UUID

from runnel.client.errors import TopicMissing
from runnel.client.metadata import TopicPartition
from runnel.model.errors import RunnelError
from runnel.pipelines.connector.reading import plan
from runnel.pipelines.connector.reading.options import ReadOptions, Topics
from runnel.pipelines.connector.reading.plan import Offsets
from runnel.pipelines.connector.reading.ranges import Lost, Range
from runnel.pipelines.connector.reading.survey import Survey
from runnel.pipelines.errors import BadOption

DISCOVER_S = 1.0  # how old the list of partitions may be
IDLE_S = 0.03  # Spark asks again after 10 ms if there was nothing: a broker has better things to do
REWOUND_S = 5.0  # how long a leader that has just changed may tell an end that lies before what was read
RECOMMIT_S = 3_600.0  # groups are forgotten after days without a commit; an idle query is alive
OLDEST_AMONG = 4  # partitions whose oldest message is looked at
COMMIT_PAUSE_S = 30.0  # after a commit that failed

log = logging.getLogger(__name__)


class Course:
    """Where the batches of a query begin and end."""

    def __init__(self, options: ReadOptions, *, now: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self.survey = Survey(options)
        self.newest: Offsets | None = None  # where the logs ended when it was looked at last
        self._now = now
        self._target: Offsets | None = None
        self._reached: Offsets = {}  # the end of the last batch
        self._known: list[TopicPartition] = []
        self._known_until = now()
        self._topic_ids: dict[str, UUID] = {}
        self._replaced: set[str] = set()  # topics of which another has the name now
        self._batch_at = now()
        self._progress = Progress(options.group, self.survey, now)

    # --- beginning
    def prepare(self) -> None:
        """End where the logs end now."""
        bounds = self.survey.bounds(self.survey.partitions())
        self._target = self.survey.finish(bounds)
        self.newest = {where: held.end for where, held in bounds.items()}

    def initial(self) -> Offsets:
        """Where a query without a checkpoint begins."""
        bounds = self.survey.bounds(self.survey.all_partitions())
        return self.survey.place(self.options.start, bounds)

    # --- the next batch
    def latest(self, start: Offsets, *, limited: bool) -> Offsets:
        """The end of the batch that begins at `start`; `start` itself if there is nothing to do."""
        ends = self._ends(start)
        alive = self._alive(start)
        self._progress.reached(alive)
        new = [where for where in ends if where not in alive]
        reachable = plan.reachable(alive, ends, self.survey.gate.starts(new))
        if reachable == start:
            return self._nothing(start)
        begins = self._begins(start, reachable)
        if limited and alive == start and self._too_few(begins, reachable):
            return self._nothing(start)
        self._batch_at = self._now()
        self._reached = self._within(begins, reachable) if limited else reachable
        return self._reached

    def _nothing(self, start: Offsets) -> Offsets:
        if self._target is None:
            time.sleep(IDLE_S)
        return start

    def _ends(self, start: Offsets) -> Offsets:
        """How far could be read now, or for Trigger.AvailableNow, when it began."""
        if self._target is not None:
            return self._target
        if self.options.end is not None:
            raise BadOption(self.options.end.option, "", "a stream has no end but with Trigger.AvailableNow")
        if self._now() >= self._known_until:
            self._discover()
        self.newest = self._settled(start)
        return self.newest

    def _discover(self) -> None:
        self._known = self.survey.partitions()
        self._known_until = self._now() + DISCOVER_S
        ids = self.survey.gate.topic_ids(self._known)
        self._replaced |= {name for name, id_ in ids.items() if self._topic_ids.get(name, id_) != id_}
        self._topic_ids |= ids

    def _settled(self, start: Offsets) -> Offsets:
        """Where the logs end. One that ends before what was read is looked at again before that is called a loss."""
        give_up_at = self._now() + REWOUND_S
        while True:
            try:
                ends = self.survey.ends(self._known)
            except TopicMissing:  # deleted since they were listed
                if self._now() >= give_up_at:
                    raise
                self._discover()
                continue
            behind = self.survey.rewound(start, ends)
            if all(lost.where.topic in self._replaced for lost in behind) or self._now() >= give_up_at:
                return ends
            time.sleep(IDLE_S)

    def _alive(self, start: Offsets) -> Offsets:
        """Where the query is in partitions that go on. What was made anew is a new partition; what is not read any
        more, and what is gone, is left behind."""
        newest = self.newest or {}
        replaced = [Lost(where, start[where], -1, plan.REPLACED) for where in start if where.topic in self._replaced]
        self._replaced.clear()
        fresh = {lost.where for lost in replaced}
        rewound = self.survey.rewound({where: at for where, at in start.items() if where not in fresh}, newest)
        gone = [Lost(w, start[w], -1, plan.GONE) for w in start if w not in newest and self.options.topics.include(w)]
        for lost in (*replaced, *rewound, *gone):
            self.survey.losses(lost)
        fresh |= {lost.where for lost in rewound}
        return {where: offset for where, offset in start.items() if where in newest and where not in fresh}

    def _begins(self, start: Offsets, reachable: Offsets) -> Offsets:
        """Where there is something to read: what is lost must not use up the limits."""
        behind = [where for where, end in reachable.items() if start.get(where, end) < end]
        kept = self.survey.gate.starts(behind)
        return {where: min(end, max(start.get(where, end), kept.get(where, 0))) for where, end in reachable.items()}

    def _too_few(self, begins: Offsets, reachable: Offsets) -> bool:
        """Whether to wait for more messages. Trigger.AvailableNow waits for none."""
        limits = self.options.limits
        if limits.rows_min is None or self._target is not None:
            return False
        rows = sum(end - begins[where] for where, end in reachable.items())
        return rows < limits.rows_min and self._now() - self._batch_at < limits.delay_ms_max / 1000

    def _within(self, begins: Offsets, ends: Offsets) -> Offsets:
        limits = self.options.limits
        if limits.rows_max is not None:
            ends = plan.within_rows(begins, ends, limits.rows_max)
        if limits.bytes_max is not None:
            ends = plan.within_bytes(begins, ends, limits.bytes_max, self.survey.gate.sizes)
        return ends

    # --- its tasks
    def tasks(self, start: Offsets, end: Offsets) -> list[Range]:
        """What a batch reads, cut into tasks."""
        wanted = plan.ranges(start, end)
        there = self._still_there(wanted)
        for span in wanted:
            if span.where not in there:
                self.survey.losses(Lost(span.where, span.first, span.end, plan.GONE))
        return self.survey.tasks([span for span in wanted if span.where in there], self.survey.gate.starts(there))

    def _still_there(self, wanted: list[Range]) -> set[TopicPartition]:
        """Which partitions of these ranges exist. A batch that is repeated is the same if other topics are read now."""
        partitions = tuple(span.where for span in wanted)
        return set(self.survey.gate.partitions(Topics(partitions=partitions))) if partitions else set()

    # --- how far it is
    def behind(self) -> dict[str, int] | None:
        """What lies between the last batch and the ends of the logs: offsets, bytes, and how long the oldest waits.

        That is looked at in the partitions with the most offsets to come. None if nothing lies between, or if that
        can't be told now.
        """
        rest = plan.ranges(self._reached, self.newest or {})
        if not rest:
            return None
        most = sorted(rest, key=lambda span: span.size, reverse=True)[:OLDEST_AMONG]
        gate = self.survey.gate
        try:
            sizes = gate.sizes({span.where: (span.first, span.end) for span in rest})
            times = [when for when in gate.times(most, self.options.isolation) if when is not None]
        except RunnelError as error:
            log.warning("how far the query is behind is not known: %s", error)
            return None
        seconds = {"seconds": max(0, int(time.time() - min(times) / 1000))} if times else {}
        bytes_ = sum(end - first for first, end in sizes.values())
        return {"offsets": sum(span.size for span in rest), "bytes": bytes_, **seconds}


class Progress:
    """How far a query is, shown as the offsets of a group."""

    def __init__(self, group: str, survey: Survey, now: Callable[[], float]) -> None:
        self._group = group
        self._survey = survey
        self._now = now
        self._told: Offsets | None = None
        self._again_at = 0.0

    def reached(self, offsets: Offsets) -> None:
        """Everything below was worked on for good."""
        now = self._now()
        if not self._group or (now < self._again_at and offsets == self._told):
            return
        if self._told is None and now < self._again_at:  # it failed a moment ago
            return
        try:
            self._survey.gate.commit(self._group, offsets)
        except RunnelError as error:
            log.warning("the progress of group %r could not be committed: %s", self._group, error)
            self._told, self._again_at = None, now + COMMIT_PAUSE_S
        else:
            self._told, self._again_at = offsets, now + RECOMMIT_S
