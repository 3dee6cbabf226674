"""Anomalies of sinks: batches that are to be published once, as a whole.

published-twice   a row of a batch lies there twice, written by two attempts
torn-batch        some rows of a batch are there, and others are not
unpublished       a driver noted a batch as published, and it is not there
"""

from collections import Counter
from collections.abc import Iterator

from runnel.testing.facts import Anomaly, Facts
from runnel.testing.history import Row


def _rows(facts: Facts) -> Counter[Row]:
    """What is there at the end."""
    final = facts.final or {}
    return Counter(send.row for send in facts.history.sends if send.row and send.value in final.get(send.key, ()))


def _published_twice(facts: Facts) -> Iterator[Anomaly]:
    for row, count in sorted(_rows(facts).items()):
        if count > 1:
            yield Anomaly("published-twice", row.sink, f"row {row.number} of batch {row.batch}, {count} times")


def _torn_batch(facts: Facts) -> Iterator[Anomaly]:
    if facts.final is None:
        return
    sizes = Counter((row.sink, row.batch) for row in _rows(facts))
    for (sink, batch), count in sorted(sizes.items()):
        if count != facts.history.batch_rows:
            yield Anomaly("torn-batch", sink, f"{count} of {facts.history.batch_rows} rows of batch {batch}")


def _unpublished(facts: Facts) -> Iterator[Anomaly]:
    if facts.final is None:
        return
    there = {(row.sink, row.batch) for row in _rows(facts)}
    for sink, noted in sorted(facts.history.noted.items()):
        missing = [batch for batch in range(noted) if (sink, batch) not in there]
        if missing:
            yield Anomaly("unpublished", sink, f"batches {missing[:5]}")


SINK_RULES = (_published_twice, _torn_batch, _unpublished)
