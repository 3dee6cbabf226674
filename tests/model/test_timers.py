"""The deadlines against a plain dictionary."""

from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.groups.timers import Alarm, Timer
from runnel.model.ids import Millis
from runnel.model.timers import Timers

NAMES = [Timer(Alarm.SESSION, "g", member) for member in "abc"]
moves = st.tuples(st.sampled_from(NAMES), st.none() | st.integers(0, 50))


@given(st.lists(st.one_of(moves, st.integers(0, 50)), max_size=60))
@settings(max_examples=200)
def test_like_a_dictionary(story: list[tuple[Timer, int | None] | int]) -> None:
    timers, model = Timers[Timer](), dict[Timer, int]()
    for event in story:
        match event:
            case int(now):
                due = []
                while timer := timers.pop_due(now):
                    due.append(timer)
                assert sorted(due) == sorted(each for each, deadline in model.items() if deadline <= now)
                assert [model[each] for each in due] == sorted(model[each] for each in due)
                model = {each: deadline for each, deadline in model.items() if deadline > now}
            case timer, None:
                timers.cancel(timer)
                model.pop(timer, None)
            case timer, int(deadline):
                timers.set(timer, deadline)
                model[timer] = deadline
        assert timers.next_ms() == min(model.values(), default=None)


def test_moving_a_deadline_on_does_not_grow_the_heap() -> None:
    timers = Timers[Timer]()
    for now in range(1_000):
        timers.set(NAMES[0], now + 10)
    assert len(timers._heap) == 1
    assert timers.deadline(NAMES[0]) == Millis(1_009)
