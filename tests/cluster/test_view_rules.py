"""What a view can be: rules about its source, its partitions and its settings."""

import itertools
from collections.abc import Mapping
from uuid import UUID

import pytest

from runnel.cluster import controller
from runnel.cluster.config_rules import ConfigChange, ConfigOp, TopicResource
from runnel.cluster.decision import Decision
from runnel.cluster.image import Broker, Delta, Endpoint, Image, Topic
from runnel.cluster.topic_rules import Defaults, NewPartitions, NewTopic
from runnel.model.errors import InvalidConfig, InvalidPartitions, ReadOnlyTopic, RunnelError, ViewSourceGone
from runnel.model.ids import BrokerId, TopicId
from runnel.model.topic_config import TopicConfig
from runnel.testing.clock import SeededRng

CONFIG = {"view.of": "source", "view.filter": "key = 'a'"}


_numbers = itertools.count(1)


def create(image: Image, *specs: NewTopic) -> Decision[Topic]:
    return controller.create_topics(
        image, specs, lambda: TopicId(UUID(int=next(_numbers))), Defaults(), SeededRng(3)
    )  # fmt: skip


def image() -> Image:
    brokers = {BrokerId(n): Broker(BrokerId(n), {"kafka": Endpoint("h", 9092)}) for n in (1, 2, 3)}
    empty = Image("c").apply(Delta(brokers=brokers))
    return empty.apply(create(empty, NewTopic("source", 3, 2)).delta)


def with_view() -> Image:
    before = image()
    return before.apply(create(before, NewTopic("view", config=CONFIG)).delta)


def altered(image: Image, topic: str, **settings: str | None) -> Mapping[str, str] | RunnelError:
    changes = [
        ConfigChange(name.replace("_", "."), value, ConfigOp.DELETE if value is None else ConfigOp.SET)
        for name, value in settings.items()
    ]
    try:
        decision = controller.alter_config(image, TopicResource(topic), changes, incremental=True, base=TopicConfig())
    except RunnelError as error:
        return error
    return image.apply(decision.delta).topic_named(topic).config


def test_a_view_has_no_partitions_and_shows_those_of_its_source() -> None:
    image = with_view()
    topic, source = image.topic_named("view"), image.topic_named("source")
    assert topic.is_view
    assert topic.partitions == ()
    assert topic.config == {**CONFIG, "view.of.id": str(source.id)}
    shown = image.shown(topic)
    assert shown.partitions == source.partitions
    assert (shown.id, shown.name) == (topic.id, "view")


def test_a_view_follows_its_source() -> None:
    before = with_view()
    grown = before.apply(controller.create_partitions(before, [NewPartitions("source", 5)], SeededRng(3)).delta)
    assert len(grown.shown(grown.topic_named("view")).partitions) == 5


def test_a_view_of_what_was_deleted_shows_nothing_even_if_the_name_is_there_again() -> None:
    before = with_view()
    gone = before.apply(controller.delete_topics(before, ["source"]).delta)
    again = gone.apply(create(gone, NewTopic("source", 1, 1)).delta)
    for after in (gone, again):
        with pytest.raises(ViewSourceGone, match="was deleted: delete the view too"):
            after.shown(after.topic_named("view"))


def test_a_view_leaves_nothing_to_remove() -> None:
    before = with_view()
    after = before.apply(controller.delete_topics(before, ["view"]).delta)
    assert "view" not in after.names
    assert after.deleted == {}


@pytest.mark.parametrize(
    ("spec", "kind", "text"),
    [
        (NewTopic("v", config={"view.of": "source"}), InvalidConfig, "needs view.filter"),
        (NewTopic("v", config={"view.filter": "TRUE"}), InvalidConfig, "is no view"),
        (NewTopic("v", config={**CONFIG, "view.of": "nowhere"}), InvalidConfig, "does not exist"),
        (NewTopic("v", config={**CONFIG, "view.of": "view"}), InvalidConfig, "name its source"),
        (NewTopic("v", config={**CONFIG, "view.of.id": "x"}), InvalidConfig, "leave it out"),
        (NewTopic("v", config={**CONFIG, "retention.ms": "1"}), InvalidConfig, "retention.ms"),
        (NewTopic("v", config={"view.of.id": "x"}), InvalidConfig, "said once"),
        (NewTopic("v", 4, config=CONFIG), InvalidPartitions, "3 partitions of its source"),
        (NewTopic("v", assignment={0: []}, config=CONFIG), InvalidPartitions, "3 partitions of its source"),
    ],
)
def test_what_no_view_can_be(spec: NewTopic, kind: type[RunnelError], text: str) -> None:
    (result,) = create(with_view(), spec).results
    assert isinstance(result, kind)
    assert text in str(result)


@pytest.mark.parametrize("partitions", [-1, 3])
def test_a_view_may_be_asked_for_with_the_partitions_it_has(partitions: int) -> None:
    (result,) = create(image(), NewTopic("v", partitions, config=CONFIG)).results
    assert isinstance(result, Topic)


def test_a_view_can_have_another_filter_and_nothing_else() -> None:
    now = altered(with_view(), "view", view_filter="FALSE")
    assert isinstance(now, Mapping)
    assert now["view.filter"] == "FALSE"
    for change in ({"view_of": "other"}, {"view_of": None}, {"view_filter": None}, {"retention_ms": "5"}):
        assert isinstance(altered(with_view(), "view", **change), InvalidConfig)
    assert isinstance(altered(with_view(), "source", view_of="view"), InvalidConfig)
    assert isinstance(altered(with_view(), "source", view_filter="TRUE"), InvalidConfig)


def test_a_view_gets_no_partitions_of_its_own() -> None:
    (result,) = controller.create_partitions(with_view(), [NewPartitions("view", 5)], SeededRng(3)).results
    assert isinstance(result, ReadOnlyTopic)
