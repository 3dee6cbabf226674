"""What becomes of dead letters: decided letter by letter, told of each, and sent back once."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from runnel.client.partitioner import partition_of_key
from runnel.model import headers as h
from runnel.model.ids import PartitionKey, TopicId
from runnel.pipelines.errors import BadOption
from runnel.pipelines.jobs.deadletters.function import repair_function
from runnel.pipelines.jobs.deadletters.letter import Letter, Pairs, Park, letter_of
from runnel.pipelines.jobs.deadletters.repair import (
    Account,
    Judge,
    Judged,
    Out,
    Outcome,
    Place,
    Repair,
    Rules,
    Target,
    account_message,
    account_of,
    sent_away,
)
from runnel.queues.letters import Edit, Origin, dead_letter, going_back, name_of_copy
from runnel.record.records import Record

RULES = Rules("jobs", rounds_max=2, parking="jobs.parked")
TARGETS = {"jobs": Target(4, 1_000), "view": Target(1, 1_000, read_only=True)}
KEY = PartitionKey(TopicId(UUID(int=1)), 3)


def died(
    value: bytes = b"{}", *, key: bytes | None = b"k", headers: Pairs = (("tenant", b"acme"),),
    reason: str = "no amount", topic: str = "jobs", partition: int = 3,
) -> tuple[Letter, Pairs]:  # fmt: skip
    """A letter as a queue writes it."""
    record = Record(17, 1_000, key, value, tuple(headers))
    origin = Origin(topic, partition, 17, 1_000)
    name = name_of_copy("dead", "jobs", KEY, 17, 0)
    out = dead_letter(record, origin, name, queue="jobs", reason=reason, attempts=5, now_ms=2_000)
    pairs = [*out.headers, (h.MESSAGE_ID, name.encode())]
    return letter_of("jobs.dead", 0, 8, 2_000, out.key, out.value, pairs), pairs


def judged(found: tuple[Letter, Pairs], repair: Repair, rules: Rules = RULES, *, gone: bool = False) -> Judged:
    return Judge(rules, repair, TARGETS.get).judge(*found, gone=gone)


def test_a_letter_tells_all_that_is_known_of_it() -> None:
    letter, _ = died(b'{"id": 7}')
    assert (letter.queue, letter.reason, letter.attempts, letter.died_ms, letter.repairs) == (
        "jobs", "no amount", 5, 2_000, 0,
    )  # fmt: skip
    assert (letter.origin_topic, letter.origin_partition, letter.origin_offset, letter.origin_timestamp_ms) == (
        "jobs", 3, 17, 1_000,
    )  # fmt: skip
    assert (letter.json(), letter.headers["tenant"]) == ({"id": 7}, b"acme")


def test_headers_that_are_no_numbers_count_for_nothing() -> None:
    letter = letter_of("d", 0, 0, 5, None, None, [(h.ATTEMPTS, b"many"), (h.REPAIRS, b"-3"), (h.DEAD_AT, None)])
    assert (letter.attempts, letter.repairs, letter.died_ms, letter.origin_topic) == (0, 0, 5, "")


def test_what_is_repaired_goes_back_to_where_it_came_from_and_its_repairs_are_counted() -> None:
    found = died(b'{"id": 7}')
    done = judged(found, lambda letter: letter.with_value({**letter.json(), "amount": 3}))
    assert done.outcome is Outcome.REPAIRED
    assert done.out is not None
    assert (done.out.topic, done.out.partition, done.out.key, done.out.value) == (
        "jobs", 3, b"k", b'{"id":7,"amount":3}',
    )  # fmt: skip
    again = letter_of("jobs.dead", 0, 9, 3_000, b"k", b"", done.out.headers)
    assert (again.repairs, again.origin_offset) == (1, 17)


@pytest.mark.parametrize("reason", ["no amount", "expired"])
def test_it_looks_as_a_redrive_would_have_made_it(reason: str) -> None:
    headers = [
        ("a", b"1"),
        ("a", None),
        (h.TTL_MS, b"50"),
        (h.DELAY_MS, b"9"),
        (h.PRIORITY, b"2"),
        (h.MESSAGE_ID, b"m"),
    ]
    letter, pairs = found = died(headers=headers, reason=reason)
    done = judged(found, lambda letter: letter)
    redriven = going_back(
        Record(8, 2_000, letter.key, letter.value, tuple(pairs)), "again", Edit({}, frozenset(), None, None)
    )
    assert done.out is not None
    told = [pair for pair in done.out.headers if pair[0] != h.REPAIRS]
    assert sorted(told, key=repr) == sorted(redriven.headers, key=repr)
    assert (done.out.key, done.out.value) == (redriven.key, redriven.value)
    assert (h.TTL_MS in dict(told)) is (reason != "expired")


def test_headers_can_be_changed_and_those_of_runnel_stay() -> None:
    done = judged(died(), lambda letter: letter.with_headers({"tenant": "other", h.ORIGIN_TOPIC: "elsewhere"}))
    assert done.out is not None
    assert dict(done.out.headers)["tenant"] == b"other"
    assert dict(done.out.headers)[h.ORIGIN_TOPIC] == b"jobs"
    assert done.out.topic == "jobs"


def test_a_letter_that_came_back_too_often_is_parked_whole_and_the_function_does_not_see_it() -> None:
    seen: list[Letter] = []
    letter, pairs = died(headers=[(h.REPAIRS, b"2")])
    done = judged((letter, pairs), seen.append)
    assert (done.outcome, done.out, seen) == (
        Outcome.PARKED, Out("jobs.parked", None, letter.key, letter.value, pairs), [],
    )  # fmt: skip
    assert "repaired 2 times" in done.why
    assert judged(died(headers=[(h.REPAIRS, b"1")]), lambda letter: letter).outcome is Outcome.REPAIRED


def test_without_a_parking_topic_it_is_left() -> None:
    done = judged(died(), lambda _: Park("strange"), replace(RULES, parking=""))
    assert done == Judged(Outcome.LEFT, "strange")


def test_none_leaves_it_and_park_parks_it() -> None:
    assert judged(died(), lambda _: None) == Judged(Outcome.LEFT)
    done = judged(died(), lambda _: Park("strange"))
    assert (done.outcome, done.why, done.out is not None) == (Outcome.PARKED, "strange", True)


def test_what_went_back_before_is_not_repaired() -> None:
    seen: list[Letter] = []
    assert judged(died(), seen.append, gone=True).outcome is Outcome.GONE
    assert seen == []


def broken(letter: Letter) -> Letter:
    return letter.with_value(letter.json()["amount"])


def test_a_function_that_raises_costs_its_letter_and_says_where() -> None:
    done = judged(died(), broken)
    assert (done.outcome, done.out) == (Outcome.FAILED, None)
    assert done.why.startswith("KeyError: 'amount' (test_deadletters.py:")
    assert done.why.endswith(" in broken)")
    assert len(judged(died(), lambda _: 1 / int("9" * 4_000 + "x")).why) <= 500


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda _: {"amount": 3}, "returned a dict: return the letter"),
        (lambda letter: replace(letter, value={"amount": 3}), "with_value takes text and JSON"),
        (lambda letter: replace(letter, headers={"n": 5}), "the header 'n' is an int"),
        (lambda letter: letter.with_value(b"x" * 2_000), "takes 1,000 (max.message.bytes)"),
    ],
)
def test_answers_that_nobody_can_use_fail(answer: Repair, why: str) -> None:
    done = judged(died(), answer)
    assert (done.outcome, done.out) == (Outcome.FAILED, None)
    assert why in done.why


@pytest.mark.parametrize(("topic", "why"), [("gone", "not there any more"), ("view", "a view")])
def test_what_has_nowhere_to_go_fails_and_is_told(topic: str, why: str) -> None:
    done = judged(died(topic=topic), lambda letter: letter)
    assert done.outcome is Outcome.FAILED
    assert why in done.why


def test_what_does_not_say_where_it_came_from_fails() -> None:
    letter = letter_of("jobs.dead", 0, 0, 1, None, b"by hand", [])
    assert judged((letter, []), lambda letter: letter).why == "it does not say where it came from"


def test_a_partition_that_is_not_there_any_more_is_replaced_by_the_one_of_the_key() -> None:
    keyed, bare = (judged(died(partition=9, key=key), lambda letter: letter).out for key in (b"a", None))
    assert keyed is not None
    assert keyed.partition == partition_of_key(b"a", 4)
    assert bare is not None
    assert bare.partition == 8 % 4  # by its own offset


def test_every_letter_has_an_account() -> None:
    letter, _ = found = died()
    repaired = account_of("jobs", letter, judged(found, lambda letter: letter), 5)
    assert repaired == Account(
        "jobs", Place("jobs.dead", 0, 8), "repaired", 5, "no amount", 1, "", Place("jobs", 3, 17), Place("jobs", 3)
    )
    out = account_message("jobs.repairs", repaired)
    assert (out.topic, out.key) == ("jobs.repairs", b"jobs.dead/0/8")
    left = account_of("jobs", letter, judged(found, lambda _: None), 5)
    assert (left.outcome, left.to, left.repairs) == ("left", None, 0)


def test_those_that_lie_elsewhere_are_told_from_those_that_do_not() -> None:
    accounts = [
        Account("jobs", Place("jobs.dead", partition, offset), outcome, 0)
        for partition, offset, outcome in [
            (0, 1, "repaired"), (0, 2, "left"), (1, 3, "parked"), (0, 4, "failed"), (0, 5, "gone"), (0, 6, "repaired"),
        ]
    ]  # fmt: skip
    assert sent_away(accounts) == {0: [1, 6], 1: [3]}


# --- the function
def test_a_function_comes_from_a_file_or_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    (tmp_path / "fixes.py").write_text("def fix(letter):\n    return letter.with_value('fixed')\n")
    letter, _ = died()
    assert repair_function(f"{tmp_path}/fixes.py:fix")(letter).value == b"fixed"
    monkeypatch.chdir(tmp_path)
    assert repair_function("fixes:fix")(letter).value == b"fixed"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fix", "use module:function"),
        (":fix", "use module:function"),
        ("nowhere.py:fix", "there is no file"),
        ("no_such_module:fix", "ModuleNotFoundError"),
        ("json:no_such", "has no function"),
    ],
)
def test_what_is_wrong_with_it_is_said(text: str, why: str) -> None:
    with pytest.raises(BadOption, match=why):
        repair_function(text)
