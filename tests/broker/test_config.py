"""Settings: where they come from, which wins, and what a mistake is told."""

import pytest

from runnel.broker.config import Address, BrokerConfig, StoreAddress, load, unknown_variables
from runnel.model.errors import InvalidConfig
from runnel.model.topic_config import FlushMode

FILE = """
kafka = "127.0.0.1:9192"
broker-id = 7
auto-create-topics = false

[topic]
retention.ms = 60000
"flush.mode" = "os"
"""


def test_without_anything_the_defaults_are_safe() -> None:
    config = load({}, {}, None, "")
    assert config == BrokerConfig()
    assert config.kafka.host == "127.0.0.1"
    assert config.topic.flush_mode is FlushMode.COMMIT


def test_flags_win_over_the_environment_and_that_over_the_file() -> None:
    environment = {"RUNNEL_BROKER_ID": "8", "RUNNEL_DATA": "/var/lib/runnel", "PATH": "/bin"}
    config = load({"broker-id": "9"}, environment, FILE, "runnel.toml")
    assert config.broker_id == 9
    assert config.data == "/var/lib/runnel"
    assert config.kafka == Address("127.0.0.1", 9192)
    assert config.auto_create_topics is False


def test_topic_defaults_stand_in_a_table_of_the_file() -> None:
    config = load({}, {}, FILE, "runnel.toml")
    assert config.topic.retention_ms == 60_000
    assert config.topic.flush_mode is FlushMode.OS


@pytest.mark.parametrize(
    ("flags", "environment", "file", "told"),
    [
        ({"kafka": "9092"}, {}, None, "command line: kafka can't be '9092'; allowed is HOST:PORT"),
        ({"kafka": "h:70000"}, {}, None, "command line: kafka can't be 'h:70000'; allowed is HOST:PORT"),
        ({}, {"RUNNEL_BROKER_ID": "x"}, None, "variable RUNNEL_BROKER_ID: broker-id can't be 'x'; allowed is"),
        ({}, {}, "kafka = 1", "runnel.toml: kafka can't be '1'; allowed is HOST:PORT"),
        ({}, {}, "port = 1", "runnel.toml: unknown setting 'port'; allowed are"),
        ({}, {}, "kafka = [", "runnel.toml is not valid TOML"),
        ({}, {}, "kafka = [1]", "runnel.toml: kafka can't be [1]; allowed is one value"),
        ({}, {}, "topic = 1", "runnel.toml: topic can't be 1; allowed is a table"),
        ({}, {}, "[topic]\nflush.mode = 'never'", "flush.mode can't be 'never': allowed is commit, interval or os"),
        ({}, {}, "[topic]\nflush = 'os'", "runnel.toml: [topic]: unknown topic setting 'flush'"),
    ],
)  # fmt: skip
def test_a_mistake_names_the_place_the_key_the_value_and_what_is_allowed(
    flags: dict[str, str], environment: dict[str, str], file: str | None, told: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(flags, environment, file, "runnel.toml")
    assert told in str(caught.value)


def test_a_mistake_in_the_defaults_of_topics_names_the_file() -> None:
    with pytest.raises(InvalidConfig, match=r"^runnel\.toml: \[topic\]: .*flush\.mode can't be 'never'"):
        load({}, {}, "[topic]\nflush.mode = 'never'", "runnel.toml")


def test_variables_that_are_no_settings_are_found_with_what_was_meant() -> None:
    environment = {
        "RUNNEL_DEFUALT_PARTITIONS": "4",
        "RUNNEL_XYZ": "1",
        "RUNNEL_DATA": "d",
        "RUNNEL_BROKER": "h:1",
        "A": "",
    }
    assert unknown_variables(environment) == {
        "RUNNEL_DEFUALT_PARTITIONS": "RUNNEL_DEFAULT_PARTITIONS",
        "RUNNEL_XYZ": None,
    }


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:0", Address("127.0.0.1", 0)), ("[::1]:9092", Address("::1", 9092)), ("host:1", Address("host", 1))],
)
def test_addresses_read_and_shown_are_the_same(text: str, address: Address) -> None:
    config = load({"kafka": text}, {}, None, "")
    assert config.kafka == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "store"),
    [
        ("embedded", StoreAddress()),
        ("zookeeper://a:1", StoreAddress("a:1")),
        ("zookeeper://a:1,[::1]:2/deep/down/", StoreAddress("a:1,[::1]:2", "/deep/down")),
    ],
)
def test_where_the_metadata_is_kept(text: str, store: StoreAddress) -> None:
    assert load({"store": text}, {}, None, "").store == store
    assert str(store) == text.rstrip("/")


@pytest.mark.parametrize(
    "text", ["", "zookeeper://", "zookeeper:///x", "zookeeper://a", "zk://a:1", "zookeeper://a:1//x"]
)
def test_a_store_that_can_not_be_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="allowed is embedded, or zookeeper://"):
        load({"store": text}, {}, None, "")
