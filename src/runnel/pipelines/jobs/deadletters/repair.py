"""What becomes of a dead letter: the repair function's answer, and what the rules of the job make of it.

Rule 1: a repair function that raises, or answers what nobody can use, costs its own letter and nothing else.
Rule 2: a letter that came back as often as is allowed is parked, before the function sees it again: no loop is endless.
Rule 3: what goes back is the message as it was before it died, with what the function changed, its origin told and its
        repairs counted; it goes to the partition that it came from.
Rule 4: what can't go where it belongs is left, and told; it must not stop those behind it.
Rule 5: every letter of the queue gets one account, whatever became of it.

    letter -- went back already ------------------> gone
           -- repairs >= the cap ------------------> parked
           -- repair(letter) -- a letter ----------> repaired
                             -- None --------------> left
                             -- Park --------------> parked
                             -- raises, or nonsense > failed
"""

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from runnel.client.partitioner import partition_of_key
from runnel.model import headers as h
from runnel.pipelines.jobs.deadletters.letter import Letter, Pairs, Park

ORIGIN: Final = (h.ORIGIN_TOPIC, h.ORIGIN_PARTITION, h.ORIGIN_OFFSET, h.ORIGIN_TIMESTAMP, h.ORIGIN_MESSAGE_ID)
ABOUT_DEATH: Final = (h.DEAD_QUEUE, h.DEAD_REASON, h.DEAD_AT, h.ATTEMPTS)
DUE: Final = (h.DELIVER_AT, h.DELAY_MS)
EXPIRY: Final = (h.EXPIRES_AT, h.TTL_MS)
EXPIRED: Final = "expired"  # the reason of a message that nobody got in time
WHY_MAX: Final = 500  # characters of an account's explanation
OVERHEAD_BYTES: Final = 100  # of a batch with one record, beyond its key, value and headers

Repair: TypeAlias = Callable[[Letter], Any]


class Outcome(StrEnum):
    REPAIRED = "repaired"
    LEFT = "left"
    PARKED = "parked"
    FAILED = "failed"
    GONE = "gone"  # it went back before, by a re-drive or an earlier repair


class Target(NamedTuple):
    """A topic that letters go to."""

    partitions: int
    bytes_max: int
    read_only: bool = False


class Out(NamedTuple):
    """A message to be written."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Pairs


class Judged(NamedTuple):
    """What became of a letter, and what is to be written for it."""

    outcome: Outcome
    why: str = ""
    out: Out | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """What the job allows."""

    queue: str
    rounds_max: int = 3  # repairs of one message
    parking: str = ""  # the topic; nothing: what would be parked is left


class Judge:
    """Decides letter by letter. `target_of` knows topics; `repair` is the user's."""

    def __init__(self, rules: Rules, repair: Repair, target_of: Callable[[str], Target | None]) -> None:
        self._rules = rules
        self._repair = repair
        self._target_of = target_of

    def judge(self, letter: Letter, pairs: Pairs, *, gone: bool = False) -> Judged:
        """What becomes of one letter, whose headers are `pairs`."""
        if gone:
            return Judged(Outcome.GONE, "it was sent back before")
        if letter.repairs >= self._rules.rounds_max:
            return self._parked(letter, pairs, f"it was repaired {letter.repairs} times, and died again")
        try:
            answer = self._repair(letter)
        except Exception as error:  # noqa: BLE001  # a user's function may raise anything (rule 1)
            return Judged(Outcome.FAILED, where_it_failed(error))
        match answer:
            case None:
                return Judged(Outcome.LEFT)
            case Park(why):
                return self._parked(letter, pairs, why)
            case Letter():
                return self._going_back(letter, pairs, answer)
        return Judged(Outcome.FAILED, f"it returned {_named(answer)}: return the letter, Park or None")

    def _going_back(self, letter: Letter, pairs: Pairs, repaired: Letter) -> Judged:
        target = self._target_of(letter.origin_topic) if letter.origin_topic else None
        if problem := _unreachable(letter, target):
            return Judged(Outcome.FAILED, problem)
        assert target is not None
        kept = pairs if repaired.headers is letter.headers else list(repaired.headers.items())
        try:
            headers = headers_back(letter, pairs, kept)
            out = Out(letter.origin_topic, _partition(letter, target.partitions), repaired.key, repaired.value, headers)
            size = _size(out)
        except (TypeError, AttributeError) as error:
            return Judged(Outcome.FAILED, f"it returned a letter that can't be written: {error}")
        if size > target.bytes_max:
            wants = f"{size:,} bytes, and {out.topic!r} takes {target.bytes_max:,} (max.message.bytes)"
            return Judged(Outcome.FAILED, f"repaired, it has {wants}")
        return Judged(Outcome.REPAIRED, "", out)

    def _parked(self, letter: Letter, pairs: Pairs, why: str) -> Judged:
        """Whole, as it lies among the dead letters, so that nothing about it is lost."""
        if not self._rules.parking:
            return Judged(Outcome.LEFT, why)
        return Judged(Outcome.PARKED, why, Out(self._rules.parking, None, letter.key, letter.value, pairs))


def headers_back(letter: Letter, pairs: Pairs, kept: Pairs) -> Pairs:
    """The headers of what goes back: those that stay, where it came from, and one repair more."""
    dropped = {h.MESSAGE_ID, h.REPAIRS, *ORIGIN, *ABOUT_DEATH, *DUE}
    if letter.reason == EXPIRED:
        dropped.update(EXPIRY)  # it would die again at once
    told = [pair for pair in pairs if pair[0] in ORIGIN]
    return [
        *(_pair(name, value) for name, value in kept if name not in dropped),
        *told, (h.REPAIRS, str(letter.repairs + 1).encode()),
    ]  # fmt: skip


def _pair(name: str, value: bytes | None) -> tuple[str, bytes | None]:
    if not isinstance(name, str) or not isinstance(value, bytes | None):
        raise TypeError(f"the header {name!r} is {_named(value)}, not bytes or None")
    return name, value


def _unreachable(letter: Letter, target: Target | None) -> str:
    if not letter.origin_topic:
        return "it does not say where it came from"
    if target is None:
        return f"it came from {letter.origin_topic!r}, which is not there any more"
    return f"it came from {letter.origin_topic!r}, which is a view: nobody writes to it" if target.read_only else ""


def _partition(letter: Letter, count: int) -> int:
    """Where it came from; where it belongs by its key, if that partition is not there any more."""
    if 0 <= letter.origin_partition < count:
        return letter.origin_partition
    return letter.offset % count if letter.key is None else partition_of_key(letter.key, count)


def _size(out: Out) -> int:
    for part in (out.key, out.value):
        if not isinstance(part, bytes | None):
            raise TypeError(f"key and value are bytes or None, not {_named(part)}: with_value takes text and JSON")
    headers = sum(len(name.encode()) + len(value or b"") + 10 for name, value in out.headers)
    return len(out.key or b"") + len(out.value or b"") + headers + OVERHEAD_BYTES


def _named(value: object) -> str:
    return f"{'an' if type(value).__name__[0] in 'aeiou' else 'a'} {type(value).__name__}"


def where_it_failed(error: Exception) -> str:
    """One line for an account: the error, and the line of the user's code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is ours
    place = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{text[: WHY_MAX - len(place)]}{place}"


# --- accounts


class Place(msgspec.Struct, frozen=True):
    topic: str
    partition: int | None
    offset: int | None = None


class Account(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened to one dead letter, as it is kept in the topic of accounts."""

    queue: str
    letter: Place
    outcome: str
    at_ms: int
    reason: str = ""
    repairs: int = 0  # with this one
    why: str = ""
    origin: Place | None = None
    to: Place | None = None


def account_of(queue: str, letter: Letter, judged: Judged, at_ms: int) -> Account:
    origin, out = letter.origin_topic, judged.out
    return Account(
        queue, Place(letter.topic, letter.partition, letter.offset), judged.outcome.value, at_ms, letter.reason,
        letter.repairs + (judged.outcome is Outcome.REPAIRED), judged.why[:WHY_MAX],
        Place(origin, letter.origin_partition, letter.origin_offset) if origin else None,
        Place(out.topic, out.partition) if out is not None else None,
    )  # fmt: skip


def account_message(topic: str, account: Account) -> Out:
    """An account as a message, under the place of its letter."""
    place = account.letter
    key = f"{place.topic}/{place.partition}/{place.offset}".encode()
    return Out(topic, None, key, msgspec.json.encode(account), ())


def sent_away(accounts: Iterable[Account]) -> dict[int, list[int]]:
    """The letters that lie elsewhere now: offsets by partition."""
    away: dict[int, list[int]] = {}
    for account in accounts:
        place = account.letter
        if account.outcome in (Outcome.REPAIRED, Outcome.PARKED) and place.offset is not None:
            away.setdefault(place.partition or 0, []).append(place.offset)
    return away
