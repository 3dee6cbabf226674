"""Administration with every client that can: topics, partitions, settings, records, groups and their offsets."""

import pytest
from tests.compat.agent import Refused
from tests.compat.stage import Stage, clients, clients_but, texts, values
from tests.compat.waiting import wait_until

UNKNOWN_TOPIC, INVALID_TOPIC, EXISTS, INVALID_PARTITIONS, INVALID_CONFIG = 3, 17, 36, 37, 40
UNKNOWN_TOPIC_ID, OFFSET_OUT_OF_RANGE, NOT_EMPTY, GROUP_NOT_FOUND, SUBSCRIBED = 100, 1, 68, 69, 86
ADMINS = ("confluent", "aiokafka", "kafka-python", "kafkajs", "java-3.9", "java-4.3")


def refusal(stage: Stage, client: str, do: str, **arguments: object) -> int | None:
    """Kafka's error code that a call ends with."""
    with pytest.raises(Refused) as refused:
        stage.agent(client).call(do, **arguments)
    return refused.value.code


@clients(*ADMINS)
def test_topics_are_created_described_listed_and_deleted(client: str, stage: Stage) -> None:
    admin, topic = stage.agent(client), stage.name("admin")
    admin.call("create_topic", topic=topic, partitions=3, config={"retention.ms": "86400000"})
    broker = admin.call("describe_cluster")["brokers"][0][0]
    wait_until(lambda: topic in admin.call("list_topics"), f"{topic} in the list")
    described = admin.call("describe_topic", topic=topic)
    assert (described["partitions"], described["leaders"]) == (3, [broker] * 3)
    assert admin.call("describe_config", topic=topic)["retention.ms"] == "86400000"
    admin.call("delete_topic", topic=topic)
    wait_until(lambda: topic not in admin.call("list_topics"), f"{topic} gone from the list")


@clients("kcat")
def test_kcat_lists_topics_and_brokers(client: str, stage: Stage) -> None:
    topic = stage.topic("kcat", partitions=3)
    assert topic in stage.agent(client).call("list_topics")
    assert stage.agent(client).call("describe_topic", topic=topic)["partitions"] == 3
    assert len(stage.agent(client).call("describe_cluster")["brokers"]) == 1


@clients(*ADMINS)
def test_a_topic_that_exists_is_not_created_again(client: str, stage: Stage) -> None:
    topic = stage.topic("twice")
    assert refusal(stage, client, "create_topic", topic=topic, partitions=1, config={}) == EXISTS


@pytest.mark.parametrize("name", ["", ".", "..", "with space", "../escape", "a/b", "x" * 250])
@clients("confluent", "kafkajs", "java-4.3")
def test_names_that_topics_can_not_have(client: str, name: str, stage: Stage) -> None:
    with pytest.raises(Refused):  # some clients refuse by themselves, others ask the broker
        stage.agent(client).call("create_topic", topic=name, partitions=1, config={})
    assert name not in stage.agent("confluent").call("list_topics")


@clients("confluent", "kafkajs")
def test_an_invalid_name_gets_its_code(client: str, stage: Stage) -> None:
    assert refusal(stage, client, "create_topic", topic="not/allowed", partitions=1, config={}) == INVALID_TOPIC


@clients(*ADMINS)
def test_settings_that_do_not_exist_or_make_no_sense(client: str, stage: Stage) -> None:
    def attempt(config: dict[str, str]) -> int | None:
        return refusal(stage, client, "create_topic", topic=stage.name("bad"), partitions=1, config=config)

    assert attempt({"no.such.setting": "1"}) == INVALID_CONFIG
    assert attempt({"retention.ms": "soon"}) == INVALID_CONFIG


@clients_but("kcat", "kafkajs")
def test_deleting_an_unknown_topic(client: str, stage: Stage) -> None:
    assert refusal(stage, client, "delete_topic", topic=stage.name("unknown")) == UNKNOWN_TOPIC


@clients(*ADMINS)
def test_partitions_are_added_never_taken_away(client: str, stage: Stage) -> None:
    admin, topic = stage.agent(client), stage.topic("grow", partitions=2)
    admin.call("create_partitions", topic=topic, total=5)
    wait_until(lambda: admin.call("describe_topic", topic=topic)["partitions"] == 5, "five partitions")
    assert refusal(stage, client, "create_partitions", topic=topic, total=3) == INVALID_PARTITIONS
    sent = texts("grown", 10, partitions=5)
    stage.agent("confluent").produce(topic, sent)
    assert sorted(map(bytes, filter(None, values(stage.agent("confluent").read(topic, partitions=5))))) == sorted(
        map(bytes, filter(None, values(sent)))
    )


@clients("confluent", "kafka-python", "java-3.9", "java-4.3")
def test_one_setting_is_changed_and_reset(client: str, stage: Stage) -> None:
    admin, topic = stage.agent(client), stage.topic("alter", config={"segment.bytes": "2097152"})

    def setting(name: str) -> str:
        return str(admin.call("describe_config", topic=topic)[name])

    default = setting("retention.ms")
    admin.call("alter_config", topic=topic, name="retention.ms", value="3600000")
    wait_until(lambda: setting("retention.ms") == "3600000", "the new value")
    assert setting("segment.bytes") == "2097152", "the rest stays"
    admin.call("alter_config", topic=topic, name="retention.ms", value=None)
    wait_until(lambda: setting("retention.ms") == default, "the default again")
    refused = refusal(stage, client, "alter_config", topic=topic, name="cleanup.policy", value="burn")
    assert refused == INVALID_CONFIG


@clients("confluent", "aiokafka", "kafkajs")
def test_all_settings_are_replaced(client: str, stage: Stage) -> None:
    admin, topic = stage.agent(client), stage.topic("replace", config={"retention.bytes": "1000000"})
    admin.call("replace_config", topic=topic, config={"retention.ms": "3600000"})

    def replaced() -> bool:
        found = admin.call("describe_config", topic=topic)
        return (found["retention.ms"], found["retention.bytes"]) == ("3600000", "-1")

    wait_until(replaced, "the new settings alone")


@clients(*ADMINS)
def test_records_are_deleted_up_to_an_offset(client: str, stage: Stage) -> None:
    topic = stage.topic("trim")
    stage.agent("confluent").produce(topic, texts("t", 10, partitions=1))
    assert stage.agent(client).call("delete_records", topic=topic, partition=0, offset=4) == 4
    assert values(stage.agent(client).read(topic)) == [b"t-%d" % number for number in range(4, 10)]
    assert stage.agent(client).call("offsets", topic=topic, partition=0, timestamp=0)["earliest"] == 4
    beyond = refusal(stage, client, "delete_records", topic=topic, partition=0, offset=99)
    assert beyond in (OFFSET_OUT_OF_RANGE, None if client == "kafkajs" else OFFSET_OUT_OF_RANGE)


def committed_group(stage: Stage, topic: str) -> str:
    """A group that committed offset 5 and left."""
    group = stage.name("admin-group")
    stage.agent("confluent").produce(topic, texts("g", 5, partitions=1))
    member = stage.member("confluent", group, topic)
    member.wait(lambda: len(member.records) == 5, "five messages")
    member.call("commit")
    member.leave()
    return group


@clients(*ADMINS)
def test_groups_are_listed_described_and_their_offsets_read(client: str, stage: Stage) -> None:
    topic = stage.topic("groups")
    group = committed_group(stage, topic)
    admin = stage.agent(client)
    assert group in admin.call("list_groups")
    assert admin.call("describe_group", group=group) == {"state": "EMPTY", "members": []}
    assert admin.call("group_offsets", group=group) == {f"{topic}/0": 5}
    member = stage.member("confluent", group, topic)
    member.wait_assigned(1)
    described = admin.call("describe_group", group=group)
    assert (described["state"], len(described["members"])) == ("STABLE", 1)
    if client in ("confluent", "kafkajs", "java-3.9", "java-4.3"):
        assert described["members"] == [[[topic, 0]]]
    member.leave()


@clients("confluent", "kafka-python", "kafkajs", "java-3.9", "java-4.3")
def test_offsets_of_a_group_are_moved_and_the_group_deleted(client: str, stage: Stage) -> None:
    topic = stage.topic("move")
    group = committed_group(stage, topic)
    admin = stage.agent(client)
    admin.call("set_group_offset", group=group, topic=topic, partition=0, offset=2)
    assert admin.call("group_offsets", group=group) == {f"{topic}/0": 2}
    member = stage.member("confluent", group, topic)
    member.wait(lambda: len(member.records) == 3, "three messages")
    assert values(member.records) == [b"g-2", b"g-3", b"g-4"]
    assert refusal(stage, client, "delete_group", group=group) == NOT_EMPTY
    member.leave()
    admin.call("delete_group", group=group)
    wait_until(lambda: group not in admin.call("list_groups"), "the group gone")


@clients("confluent", "kafka-python", "java-3.9", "java-4.3")
def test_deleting_an_unknown_group(client: str, stage: Stage) -> None:
    assert refusal(stage, client, "delete_group", group=stage.name("unknown")) == GROUP_NOT_FOUND


@clients("kafka-python", "java-3.9", "java-4.3")
def test_offsets_of_a_group_are_forgotten(client: str, stage: Stage) -> None:
    topic = stage.topic("forget")
    group = committed_group(stage, topic)
    member = stage.member("confluent", group, topic)
    member.wait_assigned(1)
    forget = {"group": group, "topic": topic, "partition": 0}
    assert refusal(stage, client, "delete_group_offset", **forget) == SUBSCRIBED
    member.leave()
    stage.agent(client).call("delete_group_offset", **forget)
    assert stage.agent("confluent").call("group_offsets", group=group) in ({}, {f"{topic}/0": -1001})


@clients_but("kcat")
def test_the_cluster_describes_itself(client: str, stage: Stage) -> None:
    found = stage.agent(client).call("describe_cluster")
    ((broker, host, port),) = found["brokers"]
    assert f"{host}:{port}" == stage.address
    assert found["controller"] == broker
    assert found["cluster_id"]


@clients("kafka-python", "java-3.9", "java-4.3")
def test_log_folders_know_their_partitions(client: str, stage: Stage) -> None:
    topic = stage.topic("folders", partitions=2)
    stage.agent("confluent").produce(topic, texts("f", 10, partitions=2))
    found = stage.agent(client).call("log_dirs", topic=topic)
    assert found["partitions"] == 2
    assert found["bytes"] > 100


@clients("java-3.9", "java-4.3")
def test_producers_of_a_partition(client: str, stage: Stage) -> None:
    topic = stage.topic("producers")
    stage.agent(client).produce(topic, texts("p", 5, partitions=1), idempotent=True)
    (producer,) = stage.agent(client).call("describe_producers", topic=topic, partition=0)
    assert producer["last_sequence"] == 4


@clients("java-4.3", "java-3.9", "confluent")
def test_a_topic_that_is_made_anew_is_another_one(client: str, stage: Stage) -> None:
    admin, topic = stage.agent(client), stage.topic("again")
    first = admin.call("describe_topic", topic=topic)["id"]
    stage.agent("confluent").produce(topic, texts("old", 3, partitions=1))
    admin.call("delete_topic", topic=topic)
    wait_until(lambda: topic not in admin.call("list_topics"), "the topic gone")
    admin.call("create_topic", topic=topic, partitions=1, config={})
    wait_until(lambda: topic in admin.call("list_topics"), "the topic back")
    assert admin.call("describe_topic", topic=topic)["id"] != first
    assert stage.agent(client).read(topic) == []


@clients("confluent", "java-3.9", "java-4.3")  # the others ask in a way that creates it
def test_describing_an_unknown_topic(client: str, stage: Stage) -> None:
    topic = stage.name("unknown")
    assert refusal(stage, client, "describe_topic", topic=topic) == UNKNOWN_TOPIC
    assert topic not in stage.agent("confluent").call("list_topics"), "asking creates nothing"


@clients("java-3.9", "java-4.3")
def test_a_trial_creates_nothing(client: str, stage: Stage) -> None:
    topic = stage.name("trial")
    stage.agent(client).call("validate_topic", topic=topic)
    assert topic not in stage.agent(client).call("list_topics")
    assert refusal(stage, client, "validate_topic", topic=stage.topic("there")) == EXISTS


@clients("java-3.9", "java-4.3")
def test_topics_are_described_and_deleted_by_id(client: str, stage: Stage) -> None:
    admin, topic = stage.agent(client), stage.topic("by-id")
    topic_id = admin.call("describe_topic", topic=topic)["id"]
    assert admin.call("describe_topic_by_id", topic_id=topic_id) == topic
    admin.call("delete_topic_by_id", topic_id=topic_id)
    wait_until(lambda: topic not in admin.call("list_topics"), "the topic gone")
    assert refusal(stage, client, "delete_topic_by_id", topic_id=topic_id) == UNKNOWN_TOPIC_ID


@clients("java-3.9", "java-4.3")
def test_groups_tell_their_protocol(client: str, stage: Stage) -> None:
    topic = stage.topic("types")
    for protocol, shown in (("classic", "Classic"), ("consumer", "Consumer")):
        group = stage.name("type")
        member = stage.member("confluent", group, topic, protocol=protocol)
        member.wait_assigned(1)
        assert stage.agent(client).call("group_type", group=group) == shown
        member.leave()


@clients("java-3.9", "java-4.3")
def test_features_and_settings_of_the_broker(client: str, stage: Stage) -> None:
    assert {"group.version", "metadata.version"} <= set(stage.agent(client).call("features"))
    settings = stage.agent(client).call("broker_config")
    assert stage.address in settings["advertised.listeners"]
    assert int(settings["num.partitions"]) >= 1
