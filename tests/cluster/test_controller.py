"""The controller's decisions, as tables."""

from collections.abc import Iterator, Mapping
from uuid import UUID

import pytest

from runnel.broker.internal import internal_topic
from runnel.cluster import controller
from runnel.cluster.config_rules import BrokerResource, ConfigChange, ConfigOp, TopicResource
from runnel.cluster.decision import Decision
from runnel.cluster.image import AdmittedBroker, Broker, BrokerState, Delta, Endpoint, Image, Topic
from runnel.cluster.topic_rules import Defaults, NewPartitions, NewTopic
from runnel.model.errors import (
    BrokerNotRegistered,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicName,
    PolicyViolation,
    RunnelError,
    TopicAlreadyExists,
    UnknownTopic,
    UnknownTopicId,
)
from runnel.model.ids import BrokerId, TopicId
from runnel.model.topic_config import TopicConfig
from runnel.testing.clock import SeededRng


def b(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def empty(brokers: int = 3) -> Image:
    alive = {each: Broker(each, {"kafka": Endpoint("h", 9092)}) for each in b(*range(1, brokers + 1))}
    return Image("c").apply(Delta(brokers=alive))


def ids() -> Iterator[TopicId]:
    number = 1000
    while True:
        number += 1
        yield TopicId(UUID(int=number))


def create(image: Image, *specs: NewTopic, defaults: Defaults | None = None) -> Decision[Topic]:
    supply = ids()
    return controller.create_topics(image, specs, lambda: next(supply), defaults or Defaults(), SeededRng(3))


def with_topics(*specs: NewTopic, brokers: int = 3) -> Image:
    image = empty(brokers)
    decision = create(image, *specs)
    assert all(isinstance(result, Topic) for result in decision.results), decision.results
    return image.apply(decision.delta)


def made(decision: Decision[Topic]) -> Topic:
    (result,) = decision.results
    assert isinstance(result, Topic)
    return result


# --- creating


def test_a_new_topic_has_what_was_asked_for() -> None:
    topic = made(create(empty(), NewTopic("t", 6, 2, config={"retention.ms": "5"})))
    assert (topic.name, len(topic.partitions), topic.config) == ("t", 6, {"retention.ms": "5"})
    for partition in topic.partitions:
        assert len(partition.replicas) == 2
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert (partition.leader_epoch, partition.epoch) == (0, 0)


def test_defaults_stand_in_where_nothing_was_asked_for() -> None:
    topic = made(create(empty(), NewTopic("t"), defaults=Defaults(partitions=4, replication_factor=3)))
    assert [len(partition.replicas) for partition in topic.partitions] == [3] * 4


def test_an_assignment_by_hand_is_kept_to_the_letter() -> None:
    topic = made(create(empty(), NewTopic("t", assignment={1: b(2, 1), 0: b(3, 2)})))
    assert [partition.replicas for partition in topic.partitions] == [(3, 2), (2, 1)]


EXISTING = with_topics(NewTopic("taken"), NewTopic("a.b"))
REFUSED: list[tuple[NewTopic, type[RunnelError], str]] = [
    (NewTopic(""), InvalidTopicName, "is not allowed"),
    (NewTopic(".."), InvalidTopicName, "names of folders"),
    (NewTopic("a/b"), InvalidTopicName, "letters, digits"),
    (NewTopic("x" * 250), InvalidTopicName, "1 to 249"),
    (NewTopic("taken"), TopicAlreadyExists, "'taken' already exists"),
    (NewTopic("a_b"), InvalidTopicName, "collides with topic 'a.b'"),
    (NewTopic("t", 0), InvalidPartitions, "at least 1"),
    (NewTopic("t", -2), InvalidPartitions, "at least 1"),
    (NewTopic("t", 1, 0), InvalidReplicationFactor, "at least 1"),
    (NewTopic("t", 1, -2), InvalidReplicationFactor, "at least 1"),
    (NewTopic("t", 1, 4), InvalidReplicationFactor, "3 brokers serve"),
    (NewTopic("t", config={"no.such": "1"}), InvalidConfig, "no.such"),
    (NewTopic("t", config={"retention.ms": "soon"}), InvalidConfig, "can't be 'soon'"),
    (NewTopic("t", 1, assignment={0: b(1)}), InvalidRequest, "must both be -1"),
    (NewTopic("t", -1, 1, assignment={0: b(1)}), InvalidRequest, "must both be -1"),
    (NewTopic("t", assignment={}), InvalidReplicaAssignment, "without a gap"),
    (NewTopic("t", assignment={0: b(1), 2: b(1)}), InvalidReplicaAssignment, "without a gap"),
    (NewTopic("t", assignment={1: b(1)}), InvalidReplicaAssignment, "without a gap"),
    (NewTopic("t", assignment={0: b()}), InvalidReplicaAssignment, "each broker once"),
    (NewTopic("t", assignment={0: b(1, 1)}), InvalidReplicaAssignment, "each broker once"),
    (NewTopic("t", assignment={0: b(9)}), InvalidReplicaAssignment, "broker 9 is not registered"),
    (NewTopic("t", assignment={0: b(1, 2), 1: b(1)}), InvalidReplicaAssignment, "same number of replicas"),
]


@pytest.mark.parametrize(("spec", "kind", "words"), REFUSED, ids=lambda case: getattr(case, "__name__", None))
def test_a_topic_that_can_not_be_is_refused_alone(spec: NewTopic, kind: type[RunnelError], words: str) -> None:
    decision = create(EXISTING, spec, NewTopic("fine"))
    error, fine = decision.results
    assert type(error) is kind
    assert words in str(error)
    assert isinstance(fine, Topic)
    assert [topic.name for topic in decision.delta.topics.values() if topic] == ["fine"]


def test_a_name_given_twice_makes_no_topic_at_all() -> None:
    decision = create(empty(), NewTopic("t"), NewTopic("t"), NewTopic("u"))
    assert [type(result) for result in decision.results] == [InvalidRequest, InvalidRequest, Topic]


def test_names_of_one_request_must_not_collide_either() -> None:
    decision = create(empty(), NewTopic("a.b"), NewTopic("a_b"))
    assert [type(result) for result in decision.results] == [Topic, InvalidTopicName]


def test_one_request_makes_a_bounded_number_of_partitions() -> None:
    with pytest.raises(PolicyViolation, match="10001 partitions"):
        create(empty(), NewTopic("t", 10_000), NewTopic("u", 1))
    assert len(made(create(empty(), NewTopic("t", 10_000, 3))).partitions) == 10_000


def test_settings_of_the_cluster_do_not_make_a_topic_invalid() -> None:
    image = empty()
    image = image.apply(_alter(image, BrokerResource(None), ConfigChange("log.retention.ms", "77")))
    assert made(create(image, NewTopic("t"))).config == {}


# --- while brokers are away


def without(*gone: int, brokers: int = 3) -> Image:
    """A cluster of which some brokers were admitted once, and are not alive now."""
    image = empty(brokers)
    admitted = {each: AdmittedBroker(each, f"d{each}", f"r{each}") for each in image.brokers}
    return image.apply(Delta(brokers=dict.fromkeys(b(*gone)), admitted=admitted))


def test_a_replica_of_a_new_topic_may_be_away_and_is_out_of_sync_then() -> None:
    image = without(2)
    topic = made(create(image, NewTopic("t", 4, 3)))
    for partition in topic.partitions:
        assert set(partition.replicas) == {1, 2, 3}
        assert partition.replicas[2] == 2  # the preferred leader is one who serves
        assert (set(partition.isr), partition.elr) == ({1, 3}, ())
        assert partition.leader == partition.replicas[0]
    spared = made(create(image, NewTopic("t", 4, 2)))
    assert {replica for partition in spared.partitions for replica in partition.replicas} == {1, 3}


def test_who_is_away_counts_for_the_default_and_for_internal_topics() -> None:
    usual = made(create(without(2, 3), NewTopic("t"), defaults=Defaults(replication_factor=0)))
    assert [len(partition.replicas) for partition in usual.partitions] == [3]
    assert internal_topic("__consumer_offsets", without(2, 3), 5).replication_factor == 3
    assert internal_topic("__consumer_offsets", empty(1), 5).replication_factor == 1


def test_a_broker_that_was_never_admitted_is_nobody_to_count_with() -> None:
    image = empty(1).apply(Delta(brokers={BrokerId(2): Broker(BrokerId(2), {}, state=BrokerState.STARTING)}))
    (refused,) = create(image, NewTopic("t", 1, 2)).results
    assert isinstance(refused, InvalidReplicationFactor)


def test_partitions_are_added_while_a_broker_is_away() -> None:
    whole = without().apply(create(without(), NewTopic("t", 1, 3)).delta)
    image = whole.apply(Delta(brokers={BrokerId(3): None}))
    grown = made(controller.create_partitions(image, [NewPartitions("t", 3)], SeededRng(1)))
    assert [set(each.isr) for each in grown.partitions[1:]] == [{1, 2}, {1, 2}]
    assert [set(each.replicas) for each in grown.partitions[1:]] == [{1, 2, 3}, {1, 2, 3}]
    by_hand = made(controller.create_partitions(image, [NewPartitions("t", 2, [b(3, 2, 1)])], SeededRng(1)))
    added = by_hand.partitions[1]
    assert (added.replicas, added.isr, added.leader) == ((3, 2, 1), (2, 1), 2)


def test_by_hand_one_of_each_partition_has_to_serve() -> None:
    image = without(2, 3)
    topic = made(create(image, NewTopic("t", assignment={0: b(3, 1)})))
    assert (topic.partitions[0].leader, topic.partitions[0].isr) == (1, (1,))
    (refused,) = create(image, NewTopic("t", assignment={0: b(3, 1), 1: b(3, 2)})).results
    assert isinstance(refused, InvalidReplicaAssignment)
    assert "none of the brokers [3, 2] serves now" in str(refused)


def test_settings_of_a_broker_that_is_away_can_be_changed() -> None:
    image = without(2)
    image = image.apply(_alter(image, BrokerResource(BrokerId(2)), ConfigChange("log.retention.ms", "77")))
    assert image.configs["2"].values == {"log.retention.ms": "77"}


# --- brokers that are gone for good


def test_a_broker_that_is_gone_is_unregistered_and_counts_no_longer() -> None:
    image = without(3)
    image = image.apply(create(image, NewTopic("t", 1, 2), NewTopic("u", 1, 3)).delta)
    image = image.apply(controller.delete_topics(image, ["u"]).delta)
    image = image.apply(controller.unregister(image, BrokerId(3)))
    assert image.registered == {1, 2}
    assert [each.holders for each in image.deleted.values()] == [(1, 2)]  # nobody waits for it to remove anything
    (refused,) = create(image, NewTopic("v", 1, 3)).results
    assert isinstance(refused, InvalidReplicationFactor)


def test_who_is_alive_or_holds_replicas_stays_registered() -> None:
    """It would be trusted with them, were it to come back with an empty disk: its directory is forgotten."""
    image = without(3)
    image = image.apply(create(image, NewTopic("t", 1, 3)).delta)
    with pytest.raises(InvalidRequest, match="broker 1 is alive"):
        controller.unregister(image, BrokerId(1))
    with pytest.raises(InvalidRequest, match="broker 3 holds replicas of 1 topics, 't' among them"):
        controller.unregister(image, BrokerId(3))
    with pytest.raises(BrokerNotRegistered, match="the brokers of this cluster are 1, 2, 3"):
        controller.unregister(image, BrokerId(9))


# --- more partitions


def test_more_partitions_leave_the_old_ones_alone() -> None:
    image = with_topics(NewTopic("t", 2, 2))
    before = image.topic_named("t")
    after = made(controller.create_partitions(image, [NewPartitions("t", 5)], SeededRng()))
    assert after.partitions[:2] == before.partitions
    assert all(new is old for new, old in zip(after.partitions, before.partitions, strict=False))
    assert [len(partition.replicas) for partition in after.partitions] == [2] * 5
    assert (after.id, after.version) == (before.id, before.version + 1)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (NewPartitions("nope", 5), UnknownTopic),
        (NewPartitions("t", 2), InvalidPartitions),
        (NewPartitions("t", 1), InvalidPartitions),
        (NewPartitions("t", 0), InvalidPartitions),
        (NewPartitions("t", 4, [b(1, 2)]), InvalidReplicaAssignment),
        (NewPartitions("t", 3, [b(1)]), InvalidReplicaAssignment),
        (NewPartitions("t", 3, [b(1, 9)]), InvalidReplicaAssignment),
    ],
)
def test_partitions_that_can_not_be_are_refused(spec: NewPartitions, kind: type[RunnelError]) -> None:
    decision = controller.create_partitions(with_topics(NewTopic("t", 2, 2)), [spec], SeededRng())
    assert [type(result) for result in decision.results] == [kind]
    assert not decision.delta


def test_new_partitions_can_be_assigned_by_hand() -> None:
    image = with_topics(NewTopic("t", 1, 2))
    after = made(controller.create_partitions(image, [NewPartitions("t", 3, [b(3, 1), b(2, 3)])], SeededRng()))
    assert [partition.replicas for partition in after.partitions[1:]] == [(3, 1), (2, 3)]


# --- deleting


def test_a_deleted_topic_leaves_a_proof_until_its_data_is_gone_everywhere() -> None:
    image = with_topics(NewTopic("t", assignment={0: b(1, 2)}), NewTopic("u"))
    topic = image.topic_named("t")
    decision = controller.delete_topics(image, ["t"])
    assert decision.results == [topic]
    image = image.apply(decision.delta)
    assert image.topic("t") is None
    assert image.deleted[topic.id].holders == (1, 2)
    image = image.apply(controller.data_removed(image, BrokerId(1), [topic.id]))
    assert image.deleted[topic.id].holders == (2,)
    assert not controller.data_removed(image, BrokerId(1), [topic.id])
    image = image.apply(controller.data_removed(image, BrokerId(2), [topic.id]))
    assert not image.deleted


def test_topics_are_deleted_by_name_or_id_and_each_once() -> None:
    image = with_topics(NewTopic("t"), NewTopic("u"), NewTopic("v"))
    u, v = image.topic_named("u"), image.topic_named("v")
    unknown = TopicId(UUID(int=5))
    decision = controller.delete_topics(image, ["t", u.id, "nope", unknown, v.id, "v"])
    kinds = [type(result) for result in decision.results]
    assert kinds == [Topic, Topic, UnknownTopic, UnknownTopicId, InvalidRequest, InvalidRequest]
    assert set(image.apply(decision.delta).names) == {"v"}


# --- settings


def _alter(image: Image, resource: controller.Resource, *changes: ConfigChange, incremental: bool = True) -> Delta:
    return controller.alter_config(image, resource, changes, incremental=incremental, base=TopicConfig()).delta


def topic_config_after(config: Mapping[str, str], *changes: ConfigChange, incremental: bool = True) -> object:
    image = with_topics(NewTopic("t", config=config))
    return image.apply(_alter(image, TopicResource("t"), *changes, incremental=incremental)).topic_named("t").config


def test_settings_change_one_by_one_or_all_at_once() -> None:
    old = {"retention.ms": "5", "segment.ms": "6"}
    change = ConfigChange("retention.ms", "7")
    assert topic_config_after(old, change) == {"retention.ms": "7", "segment.ms": "6"}
    assert topic_config_after(old, change, incremental=False) == {"retention.ms": "7"}
    assert topic_config_after(old, ConfigChange("retention.ms", None, ConfigOp.DELETE)) == {"segment.ms": "6"}
    assert topic_config_after(old, ConfigChange("no.such", None, ConfigOp.DELETE)) == old  # nothing to do, as in Kafka
    assert topic_config_after(old, incremental=False) == {}


@pytest.mark.parametrize(
    ("old", "op", "value", "new"),
    [
        ({}, ConfigOp.APPEND, "compact", "delete,compact"),
        ({"cleanup.policy": "compact"}, ConfigOp.APPEND, "delete", "compact,delete"),
        ({"cleanup.policy": "compact"}, ConfigOp.APPEND, "compact", "compact"),
        ({"cleanup.policy": "compact,delete"}, ConfigOp.SUBTRACT, "delete", "compact"),
        ({"cleanup.policy": "compact"}, ConfigOp.SUBTRACT, "delete", "compact"),
    ],
)
def test_lists_can_be_added_to_and_taken_from(old: Mapping[str, str], op: ConfigOp, value: str, new: str) -> None:
    assert topic_config_after(old, ConfigChange("cleanup.policy", value, op)) == {"cleanup.policy": new}


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (ConfigChange("no.such", "1"), InvalidConfig, "no.such"),
        (ConfigChange("retention.ms", "-2"), InvalidConfig, "from -1"),
        (ConfigChange("retention.ms", None), InvalidRequest, "has no value"),
        (ConfigChange("retention.ms", "1", ConfigOp.APPEND), InvalidConfig, "is not a list"),
        (ConfigChange("cleanup.policy", "delete", ConfigOp.SUBTRACT), InvalidConfig, "delete, compact"),
    ],
)
def test_a_bad_setting_is_refused(change: ConfigChange, kind: type[RunnelError], words: str) -> None:
    image = with_topics(NewTopic("t"))
    with pytest.raises(kind, match=words):
        _alter(image, TopicResource("t"), change)


def test_a_setting_named_twice_is_refused() -> None:
    image = with_topics(NewTopic("t"))
    with pytest.raises(InvalidRequest, match=r"retention\.ms are named twice"):
        _alter(image, TopicResource("t"), ConfigChange("retention.ms", "1"), ConfigChange("retention.ms", "2"))


def test_a_change_to_what_is_already_so_writes_nothing() -> None:
    image = with_topics(NewTopic("t", config={"retention.ms": "5"}))
    assert not _alter(image, TopicResource("t"), ConfigChange("retention.ms", "5"))


def test_settings_need_their_resource() -> None:
    with pytest.raises(UnknownTopic):
        _alter(empty(), TopicResource("t"), ConfigChange("retention.ms", "1"))
    with pytest.raises(InvalidRequest, match="broker 9 is not registered: name one of 1, 2, 3"):
        _alter(empty(), BrokerResource(BrokerId(9)), ConfigChange("log.retention.ms", "1"))


def test_settings_of_brokers_are_versioned_like_topics() -> None:
    image = empty()
    for expected in range(3):
        delta = _alter(image, BrokerResource(None), ConfigChange("log.retention.ms", str(expected)))
        image = image.apply(delta)
        assert image.configs["cluster"].version == expected


# --- leading


def test_producer_ids_come_in_blocks() -> None:
    assert controller.producer_id_block(0) == range(1000)
    assert controller.producer_id_block(3000) == range(3000, 4000)


@pytest.mark.parametrize("name", ["min.insync.replicas", "unclean.leader.election.enable"])
def test_what_leaders_and_controller_must_agree_on_no_broker_has_of_its_own(name: str) -> None:
    value = "2" if name.startswith("min") else "true"
    image = empty()
    with pytest.raises(InvalidConfig, match="set it for all of them, or for a topic"):
        _alter(image, BrokerResource(b(1)[0]), ConfigChange(name, value))
    assert _alter(image, BrokerResource(None), ConfigChange(name, value)).configs
