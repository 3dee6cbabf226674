"""Anomalies of a queue, beside those of the log under it. A message is known by its value, wherever a copy of it lies.

handed-twice       one attempt of a message was handed out twice
after-accept       a message was handed out by a later attempt than the one that was accepted
attempts-back      a message was handed out by an earlier attempt than one that somebody had before
too-many-attempts  a message was handed out more often than the queue allows
early              a message was handed out before the time until which it was released
leased-twice       a message was handed out while somebody had it, who had not said a word of it
overtaken          a message was handed out before another one of its key, which lay before it, was done
unfinished         a message is in the log, and was neither accepted nor dead at the end
dead-twice         a message lies twice among the dead
dead-and-done      a message is dead, though it was accepted
not-dead           a message was rejected, and is not dead at the end
dead-unasked       a message is dead that nobody rejected, and that was delivered less often than it may be
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from runnel.testing.facts import Anomaly, Facts
from runnel.testing.history import Handed, Said, Status
from runnel.testing.jobs import JOBS


def _by_value(facts: Facts) -> dict[str, list[Handed]]:
    found: dict[str, list[Handed]] = defaultdict(list)
    for handed in facts.history.queue.handed:
        found[handed.value].append(handed)
    return found


def _said(facts: Facts, outcome: str, *statuses: Status) -> dict[str, list[Said]]:
    found: dict[str, list[Said]] = defaultdict(list)
    for said in facts.history.queue.said:
        if said.outcome == outcome and said.status in statuses:
            found[said.value].append(said)
    return found


def _handed_twice(facts: Facts) -> Iterator[Anomaly]:
    for value, handed in _by_value(facts).items():
        for attempt, count in Counter(one.attempt for one in handed).items():
            if count > 1:
                who = [one.process for one in handed if one.attempt == attempt]
                yield Anomaly("handed-twice", value, f"attempt {attempt}, to {who}")


def _after_accept(facts: Facts) -> Iterator[Anomaly]:
    accepted = _said(facts, "accept", Status.OK)
    for value, handed in _by_value(facts).items():
        first = min((said.attempt for said in accepted.get(value, ())), default=None)
        later = [one for one in handed if first is not None and one.attempt > first]
        if later:
            yield Anomaly("after-accept", value, f"attempt {first} was accepted, {later[0].attempt} was handed out")


def _attempts_back(facts: Facts) -> Iterator[Anomaly]:
    for value, handed in _by_value(facts).items():
        for one in handed:
            before = [other for other in handed if other.ended < one.begun and other.attempt >= one.attempt]
            if before:
                yield Anomaly("attempts-back", value, f"attempt {one.attempt} after {before[0].attempt}")


def _too_many_attempts(facts: Facts) -> Iterator[Anomaly]:
    allowed = facts.history.queue.attempts_max
    for one in facts.history.queue.handed:
        if one.attempt > allowed:
            yield Anomaly("too-many-attempts", one.value, f"attempt {one.attempt} of {allowed}")


def _early(facts: Facts) -> Iterator[Anomaly]:
    """Only of what was certainly released, and by clocks that nobody set."""
    if facts.history.queue.clocks_set:
        return
    handed = _by_value(facts)
    for value, releases in _said(facts, "release", Status.OK).items():
        for said in releases:
            due = said.begun + (said.delay_ms or 0) / 1000
            early = [one for one in handed[value] if one.attempt > said.attempt and one.ended < due]
            if early:
                detail = f"attempt {early[0].attempt} at {early[0].ended:.3f}, not before {due:.3f}"
                yield Anomaly("early", value, detail)


def _leased_twice(facts: Facts) -> Iterator[Anomaly]:
    if facts.history.queue.clocks_set:
        return
    spoken: dict[tuple[str, int], float] = {}
    for said in facts.history.queue.said:
        spoken[said.value, said.attempt] = min(said.begun, spoken.get((said.value, said.attempt), said.begun))
    for value, handed in _by_value(facts).items():
        for one in handed:
            until = min(one.begun + one.lease_ms / 1000, spoken.get((value, one.attempt), float("inf")))
            for other in handed:
                if other.attempt > one.attempt and other.ended < until:
                    detail = f"attempt {other.attempt} at {other.ended:.3f}, {one.attempt} lasted until {until:.3f}"
                    yield Anomaly("leased-twice", value, detail)


def _overtaken(facts: Facts) -> Iterator[Anomaly]:
    keys = facts.history.queue.keys
    places = {value: (key, offsets[0]) for key, where in facts.offsets.items() for value, offsets in where.items()}
    ended = {value: min(one.begun for one in said) for value, said in _ends(facts).items()}
    dead = {value for value, _ in facts.history.queue.dead or ()}
    lines: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
    for value, (key, offset) in places.items():
        if value in keys:
            lines[key, keys[value]].append((offset, value))
    for one in facts.history.queue.handed:
        if one.value not in keys or one.value not in places:
            continue
        key, offset = places[one.value]
        for at, value in lines[key, keys[one.value]]:
            if at < offset and value not in dead and ended.get(value, float("inf")) > one.ended:
                yield Anomaly("overtaken", one.value, f"at {offset}, handed out before {value} at {at} was done")


def _ends(facts: Facts) -> dict[str, list[Said]]:
    """What may have been the last word about each message."""
    known = Status.OK, Status.INFO
    accepted, rejected = _said(facts, "accept", *known), _said(facts, "reject", *known)
    return {value: [*accepted.get(value, ()), *rejected.get(value, ())] for value in {*accepted, *rejected}}


def _unfinished(facts: Facts) -> Iterator[Anomaly]:
    queue = facts.history.queue
    if facts.final is None or queue.dead is None:
        return
    done = {*_said(facts, "accept", Status.OK, Status.INFO)} | {value for value, _ in queue.dead}
    for key, values in facts.final.items():
        for value in sorted(values - done) if key.startswith(f"{JOBS}/") else ():
            attempts = [one.attempt for one in queue.handed if one.value == value]
            yield Anomaly("unfinished", key, f"{value}, which was handed out by the attempts {attempts}")


def _dead(facts: Facts) -> Iterator[Anomaly]:
    queue = facts.history.queue
    if queue.dead is None:
        return
    accepted, rejected = _said(facts, "accept", Status.OK), _said(facts, "reject", Status.OK, Status.INFO)
    for value, count in Counter(value for value, _ in queue.dead).items():
        if count > 1:
            yield Anomaly("dead-twice", value, f"{count} times")
        if value in accepted:
            yield Anomaly("dead-and-done", value, f"attempt {accepted[value][0].attempt} was accepted")
    for value, attempts in queue.dead:
        if value not in rejected and attempts < queue.attempts_max:
            yield Anomaly("dead-unasked", value, f"after {attempts} attempts of {queue.attempts_max}")
    there = {value for value, _ in queue.dead}
    for value in sorted({*_said(facts, "reject", Status.OK)} - there):
        yield Anomaly("not-dead", value, "was rejected")


QUEUE_RULES = (
    _handed_twice, _after_accept, _attempts_back, _too_many_attempts, _early, _leased_twice, _overtaken, _unfinished,
    _dead,
)  # fmt: skip
