"""Finds in a history what must not have happened. Pure: one history gives one list of anomalies.

    inconsistent-offsets  an offset held two values
    duplicate             an idempotent producer's message lies at two offsets
    lost-write            an acknowledged message is not there, though later ones are
    unseen                an acknowledged message was never read, not even at the end
    vanished              a message that somebody read is not there at the end
    unexpected            a message was read that nobody sent, or whose sending certainly failed
    int-poll-skip, int-nonmonotonic-poll   within one poll, messages were left out, or came again
    poll-skip, nonmonotonic-poll           the same between two polls of one process, since it was assigned
    nonmonotonic-send     an idempotent producer's messages lie in another order than sent
    commit-lost           an offset was read that is older than one acknowledged before
    zombie-commit         a commit of an earlier generation, or of an earlier owner, was accepted
    double-owner          two members read a partition in one generation
    group-skip            a group committed past a message that no member was given
    aborted-read          a message was read that nobody asked to commit

Those of transactions as a whole are in `transaction_rules`, of batches in `sink_rules`, of a queue in `queue_rules`,
of the schedule in `schedule_rules`.
The definitions are those of Jepsen's Kafka workload, with groups added. A message that was sent without acks=all, and
one whose fate is unknown, may be missing; if it was read once, it may not.
"""

from collections import defaultdict
from collections.abc import Iterator

from runnel.testing.facts import Anomaly, Facts
from runnel.testing.history import Assigned, Commit, History, Looked, Status
from runnel.testing.queue_rules import QUEUE_RULES
from runnel.testing.schedule_rules import SCHEDULE_RULES
from runnel.testing.sink_rules import SINK_RULES
from runnel.testing.transaction_rules import TRANSACTION_RULES

__all__ = ["Anomaly", "check"]


def check(history: History) -> list[Anomaly]:
    """Every anomaly, none if all is well."""
    facts = Facts(history)
    return [anomaly for rule in RULES for anomaly in rule(facts)]


def _inconsistent_offsets(facts: Facts) -> Iterator[Anomaly]:
    for key, log in facts.log.items():
        for offset, values in sorted(log.items()):
            if len(values) > 1:
                yield Anomaly("inconsistent-offsets", key, f"offset {offset} held {sorted(values)}")


def _duplicate(facts: Facts) -> Iterator[Anomaly]:
    for key, where in facts.offsets.items():
        for value, offsets in where.items():
            send = facts.sends.get(value)
            if len(offsets) > 1 and send is not None and send.idempotent:
                yield Anomaly("duplicate", key, f"{value} lies at {offsets}")


def _lost_write(facts: Facts) -> Iterator[Anomaly]:
    for key, where in facts.offsets.items():
        read = facts.read[key]
        bound = max((where[value][0] for value in read), default=-1)
        for value, offsets in where.items():
            if offsets[-1] <= bound and value not in read and value in facts.sends:
                yield Anomaly("lost-write", key, f"{value} was acknowledged at {offsets[-1]}, {bound} was read")


def _unseen(facts: Facts) -> Iterator[Anomaly]:
    for send in facts.history.sends:
        if send.status is Status.OK and send.durable and send.value not in facts.read[send.key]:
            yield Anomaly("unseen", send.key, f"{send.value} was acknowledged at {send.offset} and never read")


def _vanished(facts: Facts) -> Iterator[Anomaly]:
    if facts.final is None:
        return
    for key, values in facts.read.items():
        for value in sorted(values - facts.final.get(key, set())):
            yield Anomaly("vanished", key, f"{value} was read at {facts.offsets[key][value]}, and is gone at the end")


def _unexpected(facts: Facts) -> Iterator[Anomaly]:
    for key, values in facts.read.items():
        for value in sorted(values):
            send = facts.sends.get(value)
            if send is None or send.key != key:
                yield Anomaly("unexpected", key, f"{value} was read, and not sent there")
            elif send.status is Status.FAIL and send.transactional:
                yield Anomaly("aborted-read", key, f"{value} was read, and nobody asked to commit it")
            elif send.status is Status.FAIL:
                yield Anomaly("unexpected", key, f"{value} was read, though sending it failed")


def _steps(facts: Facts) -> Iterator[Anomaly]:
    """Polls that skip or go back, within one and from one to the next."""
    last: dict[str, dict[str, int]] = defaultdict(dict)  # process -> key -> place of the last message
    for op in facts.history.polls:
        if isinstance(op, Assigned):
            last[op.process] = {
                key: sum(known < offset for known in facts.places.get(key, {})) - 1
                for key, offset in op.positions.items()
            }
            continue
        for key, records in op.records.items():
            before = None if op.group is not None else last[op.process].get(key)
            name = ""
            for offset, value in records:
                place = facts.places[key][offset]
                if before is not None and place != before + 1:
                    what = "poll-skip" if place > before + 1 else "nonmonotonic-poll"
                    yield Anomaly(name + what, key, f"{op.process} got {value} at {offset}, place {place} of {before}")
                before, name = place, "int-"
            if before is not None:
                last[op.process][key] = before


def _nonmonotonic_send(facts: Facts) -> Iterator[Anomaly]:
    last: dict[tuple[str, str], tuple[int, str]] = {}
    for send in facts.history.sends:
        offsets = facts.offsets.get(send.key, {}).get(send.value)
        if not send.idempotent or not offsets:
            continue
        before = last.get((send.process, send.key))
        if before is not None and offsets[0] <= before[0]:
            detail = f"{send.value} at {offsets[0]} after {before[1]} at {before[0]}"
            yield Anomaly("nonmonotonic-send", send.key, detail)
        last[send.process, send.key] = offsets[0], send.value


def _commit_lost(facts: Facts) -> Iterator[Anomaly]:
    for look in facts.history.looks:
        commits = [commit for commit in facts.history.commits if commit.group == look.group]
        for key in sorted({key for commit in commits for key in commit.offsets}):
            tries = [commit for commit in commits if key in commit.offsets and commit.status is not Status.FAIL]
            before = [earlier for earlier in facts.history.looks if earlier.group == look.group]
            yield from _look_at(key, look, tries, before)


def _look_at(key: str, look: Looked, tries: list[Commit], looks: list[Looked]) -> Iterator[Anomaly]:
    """What is read is the last commit that was acknowledged or read before, or one that may have come after it."""
    done = [commit.begun for commit in tries if commit.status is Status.OK and commit.ended < look.begun]
    for earlier in looks:
        if earlier.ended < look.begun and key in earlier.offsets:
            done += [min((c.begun for c in tries if c.offsets[key] == earlier.offsets[key]), default=0.0)]
    if not done:
        return
    since, seen = max(done), look.offsets.get(key)
    allowed = {commit.offsets[key] for commit in tries if commit.ended >= since and commit.begun <= look.ended}
    if seen not in allowed:
        detail = f"group {look.group} has {seen} at {look.begun:.3f}, not in {sorted(allowed)}"
        yield Anomaly("commit-lost", key, detail)


def _zombie_commit(facts: Facts) -> Iterator[Anomaly]:
    formed: dict[tuple[str, int], float] = {}
    for join in facts.history.joins:
        at = formed.setdefault((join.group, join.generation), join.at)
        formed[join.group, join.generation] = min(at, join.at)
    for commit in facts.history.commits:
        later = [
            at for (group, generation), at in formed.items()
            if group == commit.group and generation > commit.generation >= 0
        ]  # fmt: skip
        if commit.status is Status.OK and later and min(later) < commit.begun:
            detail = f"generation {commit.generation} of {commit.group} committed at {commit.begun:.3f}"
            yield Anomaly("zombie-commit", ",".join(commit.offsets), f"{detail}, over since {min(later):.3f}")


def _commit_of_earlier_owner(facts: Facts) -> Iterator[Anomaly]:
    for commit in facts.history.commits:
        if commit.status is not Status.OK:
            continue
        for key in commit.offsets:
            owned = [o for o in facts.history.owned if o.group == commit.group and key in o.keys]
            own = max((o.at for o in owned if o.member == commit.member and o.begun < commit.ended), default=-1.0)
            later = [o for o in owned if own < o.begun and o.at < commit.begun]
            if later:  # for certain: who was told late that it owns something may have lost it meanwhile
                detail = f"{commit.member} committed at {commit.begun:.3f}"
                yield Anomaly("zombie-commit", key, f"{detail}, {later[0].member} has it since {later[0].at:.3f}")


def _double_owner(facts: Facts) -> Iterator[Anomaly]:
    owners: dict[tuple[str, int, str], str] = {}
    for poll in facts.polls:
        for key in poll.records if poll.group is not None else ():
            assert poll.group is not None
            owner = owners.setdefault((poll.group, poll.generation, key), poll.member)
            if owner != poll.member:
                detail = f"{owner} and {poll.member} both have it in generation {poll.generation} of {poll.group}"
                yield Anomaly("double-owner", key, detail)


def _group_skip(facts: Facts) -> Iterator[Anomaly]:
    given: dict[tuple[str, str], set[int]] = defaultdict(set)
    committed: dict[tuple[str, str], int] = {}
    for poll in facts.polls:
        for key, records in poll.records.items() if poll.group is not None else ():
            assert poll.group is not None
            given[poll.group, key].update(offset for offset, _ in records)
    for look in facts.history.looks:
        for key, offset in look.offsets.items():
            committed[look.group, key] = max(offset, committed.get((look.group, key), 0))
    for (group, key), bound in sorted(committed.items()):
        below = [offset for offset in sorted(facts.log.get(key, {})) if offset < bound]
        missed = [offset for offset in below if offset not in given[group, key]]
        if missed:
            yield Anomaly("group-skip", key, f"group {group} committed {bound} and was never given {missed[:5]}")


RULES = (
    _inconsistent_offsets, _duplicate, _lost_write, _unseen, _vanished, _unexpected, _steps, _nonmonotonic_send,
    _commit_lost, _zombie_commit, _commit_of_earlier_owner, _double_owner, _group_skip,
    *TRANSACTION_RULES, *SINK_RULES, *QUEUE_RULES, *SCHEDULE_RULES,
)  # fmt: skip
