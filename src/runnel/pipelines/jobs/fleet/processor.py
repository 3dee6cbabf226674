"""`track` inside Spark: state by bucket of cars, and event time by its timers.

Rule 1: cars share buckets, by a hash of their id, and the cars of a bucket are one value in the state: what Spark
        spends is by key and batch, and is far more than what one report needs.
Rule 2: a bucket has one timer, for the first moment at which time passing has something to tell.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from runnel.pipelines.jobs.fleet import track
from runnel.pipelines.jobs.fleet.cars import Report
from runnel.pipelines.jobs.fleet.topics import Topics

OUTPUT = StructType(
    [StructField("topic", StringType()), StructField("key", BinaryType()), StructField("value", BinaryType())]
)
STATE = StructType([StructField("cars", BinaryType())])


class TrackCars(StatefulProcessor):
    """From reports of a bucket to messages for the topics of results."""

    def __init__(self, topics: Topics, rules: track.Rules) -> None:
        self._topics = topics
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._kept = handle.getValueState("cars", STATE)

    def handleInputRows(self, key: Any, rows: Iterable[Row], timerValues: Any) -> Iterator[Row]:
        cars = self._cars()
        told = list(track.reported(cars, (Report(row.car, row.at_ms, row.lat, row.lon) for row in rows)))
        return self._keep(cars, told)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        cars = self._cars()
        told = list(track.passed(cars, timerValues.getCurrentWatermarkInMs(), self._rules))
        return self._keep(cars, told)

    def close(self) -> None:
        """Nothing is held beyond the state."""

    def _cars(self) -> track.Cars:
        kept = self._kept.get()
        return track.unpacked(bytes(kept[0]) if kept is not None else None)

    def _keep(self, cars: track.Cars, told: list[track.Told]) -> Iterator[Row]:
        """Keep the state and its timer; then say what was told."""
        if cars:
            self._kept.update((track.packed(cars),))
        else:
            self._kept.clear()
        self._set_timer(track.next_ms(cars, self._rules))
        return chain.from_iterable([self._row(each)] for each in told)

    def _set_timer(self, due_ms: int | None) -> None:
        for set_ms in list(self._handle.listTimers()):
            if set_ms != due_ms:
                self._handle.deleteTimer(set_ms)
        if due_ms is not None:
            self._handle.registerTimer(due_ms)

    def _row(self, told: track.Told) -> Row:
        topic = self._topics.cars if told.kind == "car" else self._topics.alerts
        return Row(topic=topic, key=told.car.encode(), value=track.value_of(told))
