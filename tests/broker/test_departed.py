"""A broker that died is listed for a while; one that ended in order, or is back, is not."""

from dataclasses import replace as with_changes
from uuid import UUID

import pytest
from msgspec.structs import replace

from runnel.broker.departed import LISTED_MS, Departed
from runnel.cluster.image import Broker, BrokerState, Change, Image, Partition, Topic, diff
from runnel.model.ids import BrokerId, Epoch, TopicId
from runnel.testing.clock import ManualClock

ONE, TWO = BrokerId(1), BrokerId(2)
LED = Topic(TopicId(UUID(int=1)), "t", (Partition(TWO, Epoch(0), Epoch(0), (TWO,), (TWO,)),))
BOTH = Image(
    "c",
    brokers={broker: Broker(broker, {}, state=BrokerState.SERVING) for broker in (ONE, TWO)},
    topics={LED.id: LED},
    names={LED.name: LED.id},
)


def without_two(image: Image) -> Image:
    return with_changes(image, version=image.version + 1, brokers={ONE: image.brokers[ONE]})


def changed(before: Image, after: Image) -> Change:
    return Change(before, after, diff(before, after))


def names(departed: Departed, image: Image) -> list[int]:
    return [broker.id for broker in departed.beside(image)]


def test_the_dead_are_listed_until_clients_have_noticed() -> None:
    clock = ManualClock()
    departed, after = Departed(clock), without_two(BOTH)
    assert names(departed, BOTH) == []
    departed.follow(changed(BOTH, after))
    assert names(departed, after) == [TWO]
    assert names(departed, BOTH) == [], "an image in which it lives lists it itself"
    clock.advance(LISTED_MS - 1)
    assert names(departed, after) == [TWO]
    clock.advance(1)
    assert names(departed, after) == []


@pytest.mark.parametrize("state", [BrokerState.STOPPING, BrokerState.STARTING])
def test_who_led_nothing_any_more_goes_at_once(state: BrokerState) -> None:
    before = with_changes(BOTH, brokers={**BOTH.brokers, TWO: replace(BOTH.brokers[TWO], state=state)})
    after = without_two(before)
    departed = Departed(ManualClock())
    departed.follow(changed(before, after))
    assert names(departed, after) == []


def test_who_coordinated_nothing_goes_at_once_even_if_it_was_not_seen_to_stop() -> None:
    before = with_changes(BOTH, topics={}, names={})
    after = without_two(before)
    departed = Departed(ManualClock())
    departed.follow(changed(before, after))
    assert names(departed, after) == []
