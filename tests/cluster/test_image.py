"""The image: look-ups, copy-on-write, and the difference between two versions."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from runnel.cluster.image import (
    Broker,
    Controller,
    DeletedTopic,
    Delta,
    Endpoint,
    Image,
    Overrides,
    Partition,
    Topic,
    diff,
)
from runnel.model.errors import UnknownTopic, UnknownTopicId
from runnel.model.ids import BrokerId, Epoch, TopicId

ONE = BrokerId(1)


def topic(number: int, name: str | None = None, *, partitions: int = 1, version: int = 0) -> Topic:
    partition = Partition(ONE, Epoch(0), Epoch(0), (ONE,), (ONE,))
    return Topic(TopicId(UUID(int=number + 1)), name or f"t{number}", (partition,) * partitions, version=version)


def image_of(*topics: Topic) -> Image:
    return Image("c").apply(Delta(topics={each.id: each for each in topics}))


def test_a_topic_is_found_by_name_and_by_id() -> None:
    first = topic(1, "orders")
    image = image_of(first, topic(2))
    assert image.topic("orders") is first
    assert image.topic_named("orders") is first
    assert image.topic_with_id(first.id) is first
    assert image.topic("nope") is None
    with pytest.raises(UnknownTopic, match="'nope' does not exist"):
        image.topic_named("nope")
    with pytest.raises(UnknownTopicId, match="no topic has the id"):
        image.topic_with_id(TopicId(UUID(int=99)))


def test_a_change_of_one_topic_shares_everything_else() -> None:
    before = image_of(*(topic(number, partitions=10) for number in range(1000)))
    old = before.topic_named("t500")
    new = replace(old, partitions=(*old.partitions[:9], replace(old.partitions[9], leader_epoch=Epoch(1))), version=1)
    after = before.apply(Delta(topics={new.id: new}))
    assert after.version == before.version + 1
    assert after.topic("t500") is new
    assert before.topic("t500") is old
    assert all(after.topics[each] is before.topics[each] for each in before.topics if each != new.id)
    assert all(now is was for now, was in zip(new.partitions[:9], old.partitions[:9], strict=True))
    assert after.names is before.names
    assert after.brokers is before.brokers
    assert after.configs is before.configs


def test_a_name_taken_again_belongs_to_the_new_topic() -> None:
    old, new = topic(1, "a.b"), topic(2, "a.b")
    together = image_of(old).apply(Delta(topics={new.id: new, old.id: None}))
    assert together.topic("a.b") is new
    assert old.id not in together.topics
    assert together.collision("a_b") == "a.b"
    gone = together.apply(Delta(topics={new.id: None}))
    assert gone.topic("a.b") is None
    assert gone.collision("a_b") is None


@pytest.mark.parametrize(
    ("present", "asked", "collides"),
    [("a.b", "a_b", True), ("a_b", "a.b", True), ("a.b.c", "a_b.c", True), ("ab", "a.b", False), ("a-b", "a_b", False)],
)
def test_names_that_differ_only_in_dot_and_underscore_collide(present: str, asked: str, collides: bool) -> None:
    assert (image_of(topic(1, present)).collision(asked) == present) is collides


def test_what_a_topic_does_not_hold_is_not_reflected() -> None:
    first = topic(1)
    delta = Delta(topics={first.id: first})
    assert not Image("c").reflects(delta)
    assert image_of(first).reflects(delta)
    assert not image_of(first).reflects(Delta(topics={first.id: None}))


def test_the_holders_of_a_topic_are_all_its_replicas() -> None:
    brokers = tuple(map(BrokerId, (3, 1, 2)))
    parts = tuple(Partition(each, Epoch(0), Epoch(0), (each,), (each,)) for each in brokers)
    assert Topic(TopicId(UUID(int=1)), "t", parts).holders == (1, 2, 3)


TOPICS = st.dictionaries(st.integers(0, 8), st.integers(0, 2), max_size=8)


@st.composite
def images(draw: st.DrawFn) -> Image:
    topics = [topic(number, f"t.{number}", version=version) for number, version in draw(TOPICS).items()]
    gone = [DeletedTopic(TopicId(UUID(int=n + 50)), "x", (ONE,)) for n in draw(st.sets(st.integers(0, 3)))]
    ids = [BrokerId(number) for number in draw(st.sets(st.integers(0, 3)))]
    epoch = Epoch(draw(st.integers(0, 2)))
    return Image("c").apply(
        Delta(
            topics={each.id: each for each in topics},
            deleted={each.id: each for each in gone},
            brokers={each: Broker(each, {"kafka": Endpoint("h", 1)}, epoch=epoch) for each in ids},
            configs={str(each): Overrides({"log.retention.ms": str(each)}) for each in ids},
            controller=Controller(BrokerId(draw(st.sampled_from([-1, 1]))), epoch),
        )
    )


@settings(max_examples=100)
@given(images(), images())
def test_the_difference_leads_from_one_image_to_the_other(old: Image, new: Image) -> None:
    delta = diff(old, new)
    reached = old.apply(delta)
    assert (reached.topics, reached.deleted, reached.brokers) == (new.topics, new.deleted, new.brokers)
    assert (reached.configs, reached.controller) == (new.configs, new.controller)
    assert (reached.names, reached.folded) == (new.names, new.folded)
    assert not diff(reached, new)
    assert reached.reflects(delta)
