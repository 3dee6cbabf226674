"""A re-drive keeps what it did, goes on where it was, and sends no letter twice."""

from typing import Any
from uuid import UUID

import pytest

from runnel.model.errors import InvalidRequest, RecordUnreadable
from runnel.model.ids import Millis
from runnel.model.step import Step
from runnel.queues.redrive import (
    CHUNK_LETTERS,
    RUNNING_KEY,
    Aim,
    Asked,
    Broken,
    Mark,
    Progress,
    Redriving,
    Run,
    Start,
    Stop,
    Task,
    View,
    state_of,
)

NOW = Millis(0)
PLACE = (UUID(int=7), 0)


class Rig:
    """A machine, and what was kept of it."""

    def __init__(self, start: int = 0, end: int = 10) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.view = View(start, end)
        self.machine = Redriving()
        self.orders: list[object] = []
        self.take(self.machine.wake(self.view, NOW, NOW))

    def take(self, step: Step) -> Any:
        for key, value in step.records:
            if value is None:
                self.kept.pop(key, None)
            else:
                self.kept[key] = value
        self.orders += step.orders
        return step.replies[0].result if step.replies else None

    def ask(self, verb: str, request: object) -> Any:
        return self.take(getattr(self.machine, verb)(request, object(), self.view, NOW, NOW))

    def crash(self) -> None:
        """Begin again with what was kept."""
        self.machine, self.orders = Redriving(), []
        for key, value in self.kept.items():
            self.machine.replay(key, value)
        self.take(self.machine.wake(self.view, NOW, NOW))

    def start(self, task: str = "a", **asked: Any) -> Any:
        return self.ask("start", Start(Asked(task, **asked)))

    def progress(self, next: int, moved: list[int], **more: Any) -> Any:
        return self.ask("progress", Progress("a", next, moved, len(moved), 0, more.pop("floors", {}), **more))


def test_a_task_begins_and_ends() -> None:
    rig = Rig(2, 5)
    task = rig.start()
    assert (task.state, task.next, task.end) == ("running", 2, 5)
    assert rig.orders == [Run("a")]
    assert RUNNING_KEY in rig.kept
    assert rig.progress(4, [2, 3]).state == "running"
    done = rig.progress(5, [4])
    assert (done.state, done.moved, done.looked_at) == ("done", 3, 3)
    assert RUNNING_KEY not in rig.kept


def test_what_others_sent_away_is_kept_like_what_went_back() -> None:
    rig = Rig(2, 10)
    assert rig.ask("mark", Mark([1, 3, 9, 10])) == [3, 9]  # 1 and 10 are not here
    assert rig.ask("mark", Mark([3])) == [3]
    rig.crash()
    assert [offset for offset in range(12) if rig.machine.went(offset)] == [3, 9]


def test_what_went_back_is_known_after_a_crash_and_for_the_next_task() -> None:
    rig = Rig(0, 3 * CHUNK_LETTERS)
    rig.start()
    rig.progress(CHUNK_LETTERS + 1, [0, 7, CHUNK_LETTERS])
    rig.crash()
    assert rig.orders == [Run("a")]
    went = [offset for offset in range(3 * CHUNK_LETTERS) if rig.machine.went(offset)]
    assert went == [0, 7, CHUNK_LETTERS]
    for start in range(3 * CHUNK_LETTERS):
        assert rig.machine.went_from(start) == sum(offset >= start for offset in went)
    task = rig.machine.task
    assert task is not None
    assert (task.next, task.moved) == (CHUNK_LETTERS + 1, 3)
    rig.progress(3 * CHUNK_LETTERS, [])
    rig.start("b")
    assert rig.machine.went(7)


def test_one_task_at_a_time_and_the_same_one_once() -> None:
    rig = Rig()
    first = rig.start()
    assert rig.start() == first
    assert rig.orders == [Run("a")]
    assert isinstance(rig.start("b"), InvalidRequest)


def test_a_task_that_is_to_stop_ends_when_nothing_of_it_is_in_doubt() -> None:
    rig = Rig()
    rig.start()
    assert rig.ask("stop", Stop("")).state == "stopping"
    rig.crash()
    assert rig.orders == [Run("a")]  # what was under way has to be made sure of
    stopped = rig.progress(3, [0, 1])
    assert (stopped.state, stopped.moved) == ("stopped", 2)
    assert RUNNING_KEY not in rig.kept
    assert rig.ask("stop", Stop("a")).state == "stopped"
    rig.crash()
    assert rig.orders == []


def test_who_stops_a_task_has_it_gone_on_with() -> None:
    rig = Rig()
    rig.start()
    rig.orders.clear()  # whoever had it is gone
    for _ in range(2):
        assert rig.ask("stop", Stop("")).state == "stopping"
    assert rig.orders == [Run("a"), Run("a")]


def test_a_task_that_broke_has_failed_for_good_and_hands_its_floors_on() -> None:
    rig = Rig()
    rig.start()
    rig.ask("aim", Aim("a", {PLACE: 100}))
    rig.take(rig.machine.broken(Broken("why"), rig.view, NOW, NOW))
    rig.crash()
    failed = rig.ask("status", Stop(""))
    assert (failed.state, failed.failure, rig.orders, RUNNING_KEY in rig.kept) == ("failed", "why", [], False)
    rig.take(rig.machine.broken(Broken("again"), rig.view, NOW, NOW))  # it is over
    assert rig.ask("status", Stop("")) == failed
    look = rig.start("look", dry_run=True)
    rig.ask("progress", Progress("look", 10, [], 0, 0, {}))
    again = rig.start("again")
    assert [floor.offset for task in (look, again) for floor in task.floors] == [100, 100]
    rig.ask("progress", Progress("again", 10, [], 0, 0, {}))
    assert rig.start("next").floors == ()


def test_floors_are_kept_before_anything_is_sent_and_rise_with_what_was() -> None:
    rig = Rig()
    rig.start()
    rig.ask("aim", Aim("a", {PLACE: 100}))
    rig.crash()
    task = rig.machine.task
    assert task is not None
    assert [(floor.topic_id, floor.partition, floor.offset) for floor in task.floors] == [(*PLACE, 100)]
    assert [floor.offset for floor in rig.progress(2, [0, 1], floors={PLACE: 103}).floors] == [103]


def test_a_dry_run_marks_nothing() -> None:
    rig = Rig()
    rig.start(dry_run=True)
    assert rig.progress(10, [0, 1, 2]).moved == 3
    assert not rig.machine.went(0)
    assert rig.machine.task is not None
    assert state_of("q", [rig.machine.task]).dry_run, "whoever asks how it went must not think that letters were sent"


def test_letters_that_are_named_bound_the_task() -> None:
    task = Rig(3, 20).start(only=(5, 9))
    assert (task.first, task.end) == (5, 10)


def test_letters_that_are_named_but_not_there_are_told() -> None:
    rig = Rig(3, 20)
    rig.ask("mark", Mark([5]))
    for offset in (2, 20, 5):
        task = rig.start(f"no {offset}", only=(offset,))
        assert (task.skipped, task.failure.partition(":")[0]) == (1, f"no dead letter is at offset {offset}")
        rig.ask("progress", Progress(f"no {offset}", task.end, [], 0, 0, {}))
    both = rig.start(only=(4, 99))
    assert (both.first, both.end, both.skipped) == (4, 20, 1)
    assert rig.progress(20, [4]).failure == both.failure


def test_what_a_task_says_that_is_over_counts_for_nothing() -> None:
    rig = Rig()
    rig.start()
    rig.progress(10, [])
    for verb, request in (("aim", Aim("a", {})), ("progress", Progress("a", 10, [1], 1, 0, {}))):
        assert isinstance(rig.ask(verb, request), InvalidRequest)
    assert not rig.machine.went(1)
    assert isinstance(rig.ask("status", Stop("other")), InvalidRequest)
    assert rig.ask("status", Stop("")).state == "done"


def test_a_task_can_fail_or_have_enough() -> None:
    for end, state in (("failed", "failed"), ("done", "done")):
        rig = Rig()
        rig.start()
        task = rig.progress(3, [0], end=end, failure="why")
        assert (task.state, task.failure) == (state, "why")


def test_what_retention_took_is_forgotten() -> None:
    rig = Rig(0, 3 * CHUNK_LETTERS)
    rig.start()
    rig.progress(2 * CHUNK_LETTERS, [1, CHUNK_LETTERS + 1])
    rig.view = View(CHUNK_LETTERS, 3 * CHUNK_LETTERS)
    rig.progress(2 * CHUNK_LETTERS + 1, [])
    assert (rig.machine.went(1), rig.machine.went(CHUNK_LETTERS + 1)) == (False, True)
    rig.crash()
    assert (rig.machine.went(1), rig.machine.went(CHUNK_LETTERS + 1)) == (False, True)


def test_a_task_in_several_partitions_is_one() -> None:
    asked = Asked("a")
    running = Task(asked, "stopping", 1, 0, 5, moved=1)
    done = Task(asked, "done", 3, 0, 3, moved=3, failure="one of them")
    state = state_of("q", [done, running])
    assert (state.state, state.moved, state.total, state.failure) == ("running", 4, 8, "one of them")
    assert state_of("q", [done]).state == "done"
    assert [state_of("q", tasks).stopping for tasks in ([done, running], [done])] == [True, False]


def test_what_a_newer_broker_wrote_is_refused() -> None:
    with pytest.raises(RecordUnreadable):
        Redriving().replay(b"\x91\x01", b"\xc1")
