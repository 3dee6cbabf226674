"""What is worth a line."""

from tests.client.views import Written, view

from runnel.client.metadata import TopicPartition
from runnel.dev.events import Sight, notable

WELL: list[Written] = [(1, [1, 2], [1, 2]), (2, [2, 1], [2, 1])]


def test_the_first_look_tells_who_decides_and_what_is_wrong() -> None:
    assert notable(None, Sight.of(view([1, 2], {"a": WELL}))) == ["broker 1 is the controller"]
    ill = Sight.of(view([1], {"a": [(1, [1, 2], [1]), (-1, [2], [2])]}))
    assert notable(None, ill) == [
        "broker 1 is the controller",
        "1 partition without a leader",
        "1 partition under-replicated",
    ]


def test_nothing_new_is_not_worth_a_line() -> None:
    assert notable(Sight.of(view([1, 2], {"a": WELL})), Sight.of(view([1, 2], {"a": WELL}))) == []


def test_a_broker_dies_and_comes_back() -> None:
    before = Sight.of(view([1, 2], {"a": WELL}))
    without = Sight.of(view([2], {"a": [(2, [1, 2], [2]), (2, [2, 1], [2])]}, controller=2))
    assert notable(before, without) == [
        "broker 1 is gone from the cluster",
        "broker 2 is the controller",
        "the lead of 1 partition went from broker 1 to broker 2",
        "2 partitions under-replicated",
    ]
    assert notable(without, before)[0] == "broker 1 serves in the cluster"
    assert notable(without, before)[-1] == "every replica is in sync again"


def test_replicas_on_their_way_are_not_missed() -> None:
    before = Sight.of(view([1, 2, 3], {"a": WELL}))
    moving = view([1, 2, 3], {"a": [(1, [1, 2, 3], [1, 2]), WELL[1]]})
    after = Sight.of(moving, {TopicPartition("a", 0): (3,)})
    assert notable(before, after) == ["replicas of 1 partition are moving"]
    assert notable(after, before) == ["no replica is moving any more"]


def test_topics_come_and_go() -> None:
    few, many = Sight.of(view([1, 2], {})), Sight.of(view([1, 2], {f"t{n}": WELL for n in range(7)}))
    assert notable(few, many) == ["new: topics t0, t1, t2, t3, t4 and 2 more"]
    assert notable(many, few) == ["deleted: topics t0, t1, t2, t3, t4 and 2 more"]
