"""Metrics in the words of Prometheus."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

from runnel import __version__
from runnel.broker.measures import Measure, measures, one
from runnel.doors.http.call import Call
from runnel.doors.http.door import HttpDoor
from runnel.doors.http.operation import Reply, operation

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "runnel_"


@operation("GET /metrics")
async def metrics(call: Call) -> Annotated[Reply, "text/plain"]:
    """Get the metrics of this broker, as Prometheus reads them.

    GET /metrics
    """
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.exposition import CONTENT_TYPE_LATEST

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Gathered([*await measures(call.broker), *_doors(call.door)]))
    ProcessCollector(registry=registry)
    return Reply(generate_latest(registry), CONTENT_TYPE_LATEST)


def _doors(door: HttpDoor) -> Iterator[Measure]:
    """What went through the doors."""
    doors = door.doors
    yield one("info", "gauge", f"Runnel {__version__}", 1)
    for field, doc in (
        ("connections", "connections that were accepted"),
        ("requests", "requests that were answered"),
        ("bytes_in", "bytes that were received"),
        ("bytes_out", "bytes that were sent"),
    ):
        rows: dict[tuple[str, ...], float] = {
            (name,): float(getattr(listener.traffic, field)) for name, listener in doors.items()
        }
        yield Measure(f"door_{field}", "counter", doc, rows, ("door",))
    opened: dict[tuple[str, ...], float] = {
        (name,): float(listener.open_connections) for name, listener in doors.items()
    }
    yield Measure("door_open_connections", "gauge", "connections that are open", opened, ("door",))


class _Gathered:
    """What was measured, for the library's exposition."""

    def __init__(self, found: Iterable[Measure]) -> None:
        self._found = found

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for measure in self._found:
            family = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
            metric = family(PREFIX + measure.name, measure.doc, labels=measure.labels)
            for labels, value in measure.rows.items():
                metric.add_metric(labels, value)
            yield metric
