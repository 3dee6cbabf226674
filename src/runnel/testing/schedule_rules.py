"""Anomalies of the schedule, beside those of the log that its messages come to.

doubled       a message came twice
early         a message was read before it was due
out-of-turn   a message came before another one that was due earlier, and was known to wait in time
What was acknowledged and never came is `unseen`, what came though it was cancelled is `unexpected`, as of all sends.
"""

from collections import defaultdict
from collections.abc import Iterator

from runnel.testing.facts import Anomaly, Facts
from runnel.testing.history import Reminder


def _doubled(facts: Facts) -> Iterator[Anomaly]:
    for reminder in facts.history.schedule.reminders:
        send = reminder.send
        offsets = facts.offsets.get(send.key, {}).get(send.value, [])
        if len(offsets) > 1:
            yield Anomaly("doubled", send.key, f"{send.value} came at {offsets}")


def _early(facts: Facts) -> Iterator[Anomaly]:
    if facts.history.schedule.clocks_set:
        return
    seen: dict[str, float] = {}
    for poll in facts.polls:
        for records in poll.records.values():
            for _, value in records:
                seen[value] = min(poll.ended, seen.get(value, poll.ended))
    for reminder in facts.history.schedule.reminders:
        value = reminder.send.value
        if value in seen and seen[value] < reminder.due_s:
            detail = f"{value} was read at {seen[value]:.3f}, due at {reminder.due_s:.3f}"
            yield Anomaly("early", reminder.send.key, detail)


def _out_of_turn(facts: Facts) -> Iterator[Anomaly]:
    """Only of those whose time is certain: who is changed while others are sent comes when that is over."""
    if facts.history.schedule.clocks_set:
        return
    lines: dict[str, list[tuple[int, Reminder]]] = defaultdict(list)
    for reminder in facts.history.schedule.reminders:
        for offset in facts.offsets.get(reminder.send.key, {}).get(reminder.send.value, [])[:1]:
            lines[reminder.send.key].append((offset, reminder))
    for key, line in lines.items():
        line.sort(key=lambda place: place[0])
        for n, (at, later) in enumerate(line):
            for behind, one in line[n + 1 :]:
                if max(one.due_s, one.settled) < later.due_s:
                    detail = (
                        f"{later.send.value} at {at}, due at {later.due_s:.3f}, before {one.send.value} at {behind}"
                    )
                    yield Anomaly("out-of-turn", key, f"{detail}, due at {one.due_s:.3f}")


SCHEDULE_RULES = _doubled, _early, _out_of_turn
