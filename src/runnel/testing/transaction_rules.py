"""Anomalies of transactions, beside those of single messages.

    fractured             of one transaction, some messages are there at the end, and others are not
    precommitted-read     a transaction read, among what is committed, a message of its own
    write-cycle           two transactions each read what the other wrote: neither can have been before the other (G1c)
    transformed-twice     a message was turned into two committed ones
    not-transformed       a group committed past a message in a transaction, and what it was turned into is not there
    transformed-disorder  messages of one partition were turned into messages in another order

Who reads while a transaction ends may see it in one partition and not yet in another; and others may write in between:
that is legal, and not looked for.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

from runnel.testing.facts import Anomaly, Facts
from runnel.testing.history import Status

Place: TypeAlias = tuple[str, int]  # partition and offset


def _fractured(facts: Facts) -> Iterator[Anomaly]:
    if facts.final is None:
        return
    for transaction in facts.history.transactions:
        there = [send.value for send in transaction.sends if send.value in facts.final[send.key]]
        if there and len(there) < len(transaction.sends):
            missing = sorted({send.value for send in transaction.sends} - {*there})
            yield Anomaly("fractured", transaction.process, f"{there} are there, {missing} are not")


def _precommitted_read(facts: Facts) -> Iterator[Anomaly]:
    for transaction in facts.history.transactions:
        own = {send.value for send in transaction.sends}
        for key, records in transaction.reads.items():
            for offset, value in records:
                if value in own:
                    yield Anomaly("precommitted-read", key, f"{value} at {offset}, by who had not committed it yet")


def _write_cycle(facts: Facts) -> Iterator[Anomaly]:
    """Whom a transaction read from came before it: in that order, every transaction must find its place."""
    writer = {send.value: transaction for transaction in facts.history.transactions for send in transaction.sends}
    before: dict[int, dict[int, str]] = {}
    for transaction in facts.history.transactions:
        if transaction.status is Status.FAIL:
            continue  # it was never there for others
        read = {
            id(writer[value]): value
            for records in transaction.reads.values()
            for _, value in records
            if value in writer
        }
        before[id(transaction)] = {other: value for other, value in read.items() if other != id(transaction)}
    left = dict(before)
    while ready := [one for one, earlier in left.items() if not any(other in left for other in earlier)]:
        for one in ready:
            del left[one]
    if left:
        values = sorted(value for earlier in left.values() for other, value in earlier.items() if other in left)
        yield Anomaly("write-cycle", "", f"{len(left)} transactions read from each other: {values[:6]}")


def _transformed(facts: Facts) -> dict[str, dict[Place, list[tuple[int, str]]]]:
    """Per partition, where what each source was turned into lies: those that somebody read as committed."""
    found: dict[str, dict[Place, list[tuple[int, str]]]] = defaultdict(lambda: defaultdict(list))
    for key, where in facts.offsets.items():
        for value, offsets in where.items():
            send = facts.sends.get(value)
            if send is not None and send.source is not None and value in facts.read[key]:
                found[key][send.source].append((offsets[0], value))
    return found


def _transformed_twice(facts: Facts) -> Iterator[Anomaly]:
    for key, sources in _transformed(facts).items():
        for source, results in sources.items():
            if len(results) > 1:
                yield Anomaly("transformed-twice", key, f"{source} became {[value for _, value in sorted(results)]}")


def _not_transformed(facts: Facts) -> Iterator[Anomaly]:
    """Only at the end: until then, a result may not be readable yet."""
    group = facts.history.transforming_group
    if facts.final is None or group is None:
        return
    done = {source for sources in _transformed(facts).values() for source in sources}
    committed: dict[str, int] = {}
    for look in facts.history.looks:
        if look.group == group:
            committed.update(look.offsets)
    for key, bound in sorted(committed.items()):
        missing = [offset for offset in sorted(facts.log.get(key, ())) if offset < bound and (key, offset) not in done]
        if missing:
            yield Anomaly("not-transformed", key, f"what lies at {missing[:5]}; group {group} is at {bound}")


def _transformed_disorder(facts: Facts) -> Iterator[Anomaly]:
    for key, sources in _transformed(facts).items():
        last: dict[str, int] = {}
        for _, (origin, offset) in sorted((min(results)[0], source) for source, results in sources.items()):
            if offset < last.get(origin, -1):
                yield Anomaly("transformed-disorder", key, f"{origin} {offset} came after {last[origin]}")
            last[origin] = offset


TRANSACTION_RULES = (
    _fractured, _precommitted_read, _write_cycle, _transformed_twice, _not_transformed, _transformed_disorder,
)  # fmt: skip
