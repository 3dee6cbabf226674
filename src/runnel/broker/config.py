"""The settings of one broker: where they come from, what is allowed, what they are by default.

One table drives the command line's values, the environment (`RUNNEL_*`), the TOML file, and DescribeConfigs.
Flags win over the environment, the environment over the file, the file over the defaults.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from runnel.model.errors import InvalidConfig
from runnel.model.limits import FRAME_BYTES_MAX, MIB
from runnel.model.parsing import one_of, truth, whole
from runnel.model.topic_config import TopicConfig

ENVIRONMENT_PREFIX = "RUNNEL_"
OTHER_VARIABLES = ("RUNNEL_BROKER", "RUNNEL_SPARK_MASTER", "RUNNEL_ZOOKEEPER_JARS")  # of other commands
EMBEDDED = "embedded"
OFF = "off"
ZOOKEEPER = "zookeeper://"
HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")
ORIGIN = re.compile(rf"https?://({HOST_NAME.pattern}|\[[0-9a-f:.]+\])(:[0-9]{{1,5}})?")


@dataclass(frozen=True, slots=True)
class Address:
    """HOST:PORT; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError(text)
    return Address(host, int(port))


def parse_names(text: str) -> str:
    """Host names without ports, in small letters; or * for any."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if any(name != "*" and not HOST_NAME.fullmatch(name) for name in names):
        raise ValueError(text)
    return ",".join(names)


def parse_origins(text: str) -> str:
    """Origins as browsers send them: in small letters, without the port that the scheme implies."""
    origins = [origin.strip().lower() for origin in text.split(",") if origin.strip()]
    if not all(ORIGIN.fullmatch(origin) for origin in origins):
        raise ValueError(text)
    return ",".join(origin.removesuffix(":443" if origin.startswith("https:") else ":80") for origin in origins)


def parse_http(text: str) -> Address | None:
    return None if text.strip() == OFF else parse_address(text)


HTTP_BY_DEFAULT = Address("127.0.0.1", 8080)  # that very object: who names the address insists on it


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where the cluster's metadata is kept; without hosts, in the data directory of this one broker."""

    hosts: str = ""  # HOST:PORT,HOST:PORT
    chroot: str = ""  # the path that everything lies below; begins with "/"

    def __str__(self) -> str:
        return f"{ZOOKEEPER}{self.hosts}{self.chroot}" if self.hosts else EMBEDDED


def parse_store(text: str) -> StoreAddress:
    if text == EMBEDDED:
        return StoreAddress()
    hosts, slash, chroot = text.removeprefix(ZOOKEEPER).partition("/")
    if not text.startswith(ZOOKEEPER) or "//" in slash + chroot:
        raise ValueError(text)
    addresses = [str(parse_address(host)) for host in hosts.split(",")]
    return StoreAddress(",".join(addresses), (slash + chroot).rstrip("/"))


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """How one setting is written, and what is allowed."""

    key: str
    parse: Callable[[str], Any]
    allowed: str
    doc: str
    kafka_name: str | None = None  # as DescribeConfigs calls it

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.key.upper().replace("-", "_")


def _setting(
    key: str, default: Any, parse: Callable[[str], Any], allowed: str, doc: str, kafka: str | None = None
) -> Any:
    return field(default=default, metadata={"setting": BrokerSetting(key, parse, allowed, doc, kafka)})


def _int(key: str, default: int, low: int, high: int, doc: str, kafka: str | None = None) -> Any:
    return _setting(key, default, whole(low, high), f"a whole number from {low} to {high}", doc, kafka)


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What `runnel serve` runs with."""

    data: str = _setting("data", "data", str, "a folder", "where everything is kept", "log.dir")
    kafka: Address = _setting(
        "kafka", Address("127.0.0.1", 9092), parse_address, "HOST:PORT", "address of the Kafka door", "listeners"
    )
    http: Address | None = _setting(
        "http", HTTP_BY_DEFAULT, parse_http, "HOST:PORT, or off", "address of the HTTP door"
    )
    advertise: str = _setting(
        "advertise",
        "",
        str,
        "a host name or address",
        "host that clients are told to connect to; default: the one bound",
    )
    broker_id: int = _int("broker-id", 1, 0, 2**31 - 1, "this broker's number in its cluster", "broker.id")
    store: StoreAddress = _setting(
        "store", StoreAddress(), parse_store, "embedded, or zookeeper://HOST:PORT,HOST:PORT/PATH",
        "where the metadata of the cluster is kept; embedded is for one broker alone", "zookeeper.connect",
    )  # fmt: skip
    session_ms: int = _int(
        "session-ms", 6_000, 500, 60_000,
        "the cluster takes a silent broker for dead after so long (a session of ZooKeeper, within its limits)",
        "zookeeper.session.timeout.ms",
    )  # fmt: skip
    rack: str = _setting(
        "rack", "", str, "a name", "where this broker stands; replicas are spread over racks", "broker.rack"
    )
    auto_create_topics: bool = _setting(
        "auto-create-topics", True, truth, "true or false", "create a topic when a client first asks for it",
        "auto.create.topics.enable",
    )  # fmt: skip
    auto_create_per_second_max: int = _int(
        "auto-create-per-second-max", 10, 1, 100_000,
        "topics that are created because clients ask for them; ten times as many at once",
    )  # fmt: skip
    topics_max: int = _int("topics-max", 10_000, 1, 1_000_000, "topics of the cluster")
    default_partitions: int = _int(
        "default-partitions", 1, 1, 10_000, "partitions of a topic that does not say", "num.partitions"
    )
    default_replication: int = _int(
        "default-replication", 0, 0, 100,
        "replicas of a topic that does not say; 0: three, or as many as there are brokers, also those that are away",
        "default.replication.factor",
    )  # fmt: skip
    replica_lag_ms: int = _int(
        "replica-lag-ms", 10_000, 100, 2**31 - 1, "a follower that lags for so long is not in sync any more",
        "replica.lag.time.max.ms",
    )  # fmt: skip
    replica_fetch_wait_ms: int = _int(
        "replica-fetch-wait-ms", 100, 1, 30_000, "how long a leader lets a follower wait if there is nothing new",
        "replica.fetch.wait.max.ms",
    )  # fmt: skip
    replica_fetch_bytes_max: int = _int(
        "replica-fetch-bytes-max", MIB, 1024, 2**31 - 1, "what a follower asks for at once of one partition",
        "replica.fetch.max.bytes",
    )  # fmt: skip
    replica_answer_bytes_max: int = _int(
        "replica-answer-bytes-max", 10 * MIB, 1024, 2**31 - 1, "what a follower asks for at once of one leader",
        "replica.fetch.response.max.bytes",
    )  # fmt: skip
    replica_fetchers: int = _int(
        "replica-fetchers", 1, 1, 64, "connections to each leader that is followed", "num.replica.fetchers"
    )
    group_partitions: int = _int(
        "group-partitions", 16, 1, 1_000, "partitions of the topic that keeps committed offsets",
        "offsets.topic.num.partitions",
    )  # fmt: skip
    group_initial_delay_ms: int = _int(
        "group-initial-delay-ms", 100, 0, 60_000, "how long a new group waits for more members",
        "group.initial.rebalance.delay.ms",
    )  # fmt: skip
    group_members_max: int = _int("group-members-max", 10_000, 1, 2**31 - 1, "members of one group", "group.max.size")
    group_member_bytes_max: int = _int(
        "group-member-bytes-max", MIB, 1024, 2**31 - 1, "what a member says of itself, and its assignment"
    )
    group_bytes_max: int = _int(
        "group-bytes-max", 8 * MIB, 1024, 2**31 - 1,
        "what the members of all groups say that one partition of the committed offsets' topic has",
    )  # fmt: skip
    transaction_partitions: int = _int(
        "transaction-partitions", 16, 1, 1_000, "partitions of the topic that keeps transactions",
        "transaction.state.log.num.partitions",
    )  # fmt: skip
    transaction_max_timeout_ms: int = _int(
        "transaction-max-timeout-ms", 900_000, 1, 2**31 - 1, "the longest that a producer may let a transaction take",
        "transaction.max.timeout.ms",
    )  # fmt: skip
    transactional_id_expiration_ms: int = _int(
        "transactional-id-expiration-ms", 604_800_000, 1, 2**31 - 1,
        "a transactional id that nobody uses is forgotten after so long",
        "transactional.id.expiration.ms",
    )  # fmt: skip
    schedule_partitions: int = _int(
        "schedule-partitions", 8, 1, 1_000, "partitions of the topic that keeps delayed messages"
    )
    queue_partitions: int = _int(
        "queue-partitions", 16, 1, 1_000, "partitions of the topic that keeps the state of queues",
        "share.coordinator.state.topic.num.partitions",
    )  # fmt: skip
    webhook_private: bool = _setting(
        "webhook-private", False, truth, "true or false",
        "let webhooks go to private addresses too: to this machine and its network",
    )  # fmt: skip
    request_bytes_max: int = _int(
        "request-bytes-max", FRAME_BYTES_MAX, 1024, FRAME_BYTES_MAX, "largest request", "socket.request.max.bytes"
    )
    http_hosts: str = _setting(
        "http-hosts", "", parse_names, "host names with commas between them, or *",
        "names by which the HTTP door may be called, beside localhost, addresses and that of advertise; *: any",
    )  # fmt: skip
    http_origins: str = _setting(
        "http-origins", "", parse_origins, "origins as http://HOST:PORT with commas between them",
        "origins whose web pages may call the HTTP door, beside the door's own",
    )  # fmt: skip
    http_body_bytes_max: int = _int(
        "http-body-bytes-max", 16 * MIB, 1024, FRAME_BYTES_MAX, "largest body of an HTTP request"
    )
    inflight_bytes_max: int = _int(
        "inflight-bytes-max", 256 * MIB, MIB, 2**40, "bytes of requests under way, all connections together",
        "queued.max.request.bytes",
    )  # fmt: skip
    call_values_max: int = _int(
        "call-values-max", 100_000, 1_000, 100_000_000, "values in one call between brokers or of Runnel's own clients"
    )
    socket_message_bytes_max: int = _int(
        "socket-message-bytes-max", MIB, 1024, FRAME_BYTES_MAX, "largest message that a client sends over a WebSocket"
    )
    answers_bytes_max: int = _int(
        "answers-bytes-max", 256 * MIB, MIB, 2**40,
        "bytes of answers that are being made or were not taken yet, all together: fetches get what is left of them",
    )  # fmt: skip
    unpacked_bytes_max: int = _int(
        "unpacked-bytes-max", 256 * MIB, MIB, 2**40,
        "bytes of batches that are decompressed at the same time, for readers of single messages",
    )  # fmt: skip
    recompressed_bytes_max: int = _int(
        "recompressed-bytes-max", FRAME_BYTES_MAX, MIB, 2**40,
        "bytes of batches that are compressed as their topics say, and not in the log yet",
    )  # fmt: skip
    connections_max: int = _int("connections-max", 10_000, 1, 1_000_000, "open connections", "max.connections")
    address_connections_max: int = _int(
        "address-connections-max", 0, 0, 1_000_000,
        "open connections of one address, to each door; 0: half of connections-max", "max.connections.per.ip",
    )  # fmt: skip
    request_arrival_ms: int = _int(
        "request-arrival-ms", 60_000, 1_000, 2**31 - 1,
        "a connection is closed whose request has begun and has not arrived after so long, whatever trickles in",
    )  # fmt: skip
    idle_ms: int = _int(
        "idle-ms", 600_000, 1_000, 2**31 - 1, "a silent connection is closed after so long", "connections.max.idle.ms"
    )
    fetch_bytes_max: int = _int(
        "fetch-bytes-max", 55 * MIB, 1024, 2**31 - 1, "largest answer to one fetch", "fetch.max.bytes"
    )
    fetch_partitions_max: int = _int(
        "fetch-partitions-max", 10_000, 100, 1_000_000, "partitions of one fetch, and of one fetch session"
    )
    leader_rebalance_ms: int = _int(
        "leader-rebalance-ms", 300_000, 0, 2**31 - 1, "how often preferred leaders get to lead again; 0: never",
        "leader.imbalance.check.interval.ms",
    )  # fmt: skip
    housekeeping_ms: int = _int(
        "housekeeping-ms", 30_000, 100, 2**31 - 1,
        "how often compaction looks for work, and what could not be opened is tried again",
    )  # fmt: skip
    retention_check_ms: int = _int(
        "retention-check-ms", 300_000, 100, 2**31 - 1,
        "how often retention looks for messages to remove; the first time after 30 s",
        "log.retention.check.interval.ms",
    )  # fmt: skip
    producer_expiry_ms: int = _int(
        "producer-expiry-ms", 86_400_000, 1_000, 2**31 - 1, "an idempotent producer is forgotten after so long",
        "producer.id.expiration.ms",
    )  # fmt: skip
    log_level: str = _setting(
        "log-level",
        "info",
        one_of("debug", "info", "warning", "error"),
        "debug, info, warning or error",
        "what is written to stderr",
    )
    topic: TopicConfig = TopicConfig()  # defaults of every topic: the [topic] table of the file

    @property
    def connections_of_an_address_max(self) -> int:
        return self.address_connections_max or max(1, self.connections_max // 2)

    def with_texts(self, texts: Mapping[str, str], origin: str) -> "BrokerConfig":
        """These settings with others on top; the error names the key, the value and what is allowed."""
        changes = {field_name(key): parse_setting(key, text, origin) for key, text in texts.items()}
        return replace(self, **changes)


BROKER_SETTINGS: dict[str, BrokerSetting] = {
    f.metadata["setting"].key: f.metadata["setting"] for f in fields(BrokerConfig) if "setting" in f.metadata
}


def field_name(key: str) -> str:
    return key.replace("-", "_")


def parse_setting(key: str, text: str, origin: str) -> Any:
    setting = BROKER_SETTINGS.get(key)
    if setting is None:
        raise InvalidConfig(f"{origin}: unknown setting {key!r}; allowed are {', '.join(sorted(BROKER_SETTINGS))}")
    try:
        return setting.parse(text)
    except ValueError:
        raise InvalidConfig(f"{origin}: {key} can't be {text!r}; allowed is {setting.allowed}") from None


def load(
    flags: Mapping[str, str], environment: Mapping[str, str], file_text: str | None, file_name: str
) -> BrokerConfig:
    """The settings out of all their sources."""
    config = BrokerConfig()
    if file_text is not None:
        config = _from_file(config, file_text, file_name)
    by_variable = {setting.variable: key for key, setting in BROKER_SETTINGS.items()}
    for variable, text in environment.items():
        if variable in by_variable:
            config = config.with_texts({by_variable[variable]: text}, f"environment variable {variable}")
    return config.with_texts(flags, "command line")


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Variables that seem to be settings and are none, with those that may have been meant."""
    from difflib import get_close_matches

    known = {
        setting.variable.removeprefix(ENVIRONMENT_PREFIX): setting.variable for setting in BROKER_SETTINGS.values()
    }
    unknown: dict[str, str | None] = {}
    for variable in sorted(environment.keys() - known.values() - set(OTHER_VARIABLES)):
        if variable.startswith(ENVIRONMENT_PREFIX):
            close = get_close_matches(variable.removeprefix(ENVIRONMENT_PREFIX), known, n=1)
            unknown[variable] = known[close[0]] if close else None
    return unknown


def _from_file(config: BrokerConfig, text: str, name: str) -> BrokerConfig:
    import tomllib  # most brokers have no file: 5 ms of start-up saved

    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{name} is not valid TOML: {error}") from None
    topic = values.pop("topic", {})
    if not isinstance(topic, dict):
        raise InvalidConfig(f"{name}: topic can't be {topic!r}; allowed is a table [topic] of topic settings")
    config = config.with_texts({key: _text_of(key, value, name) for key, value in values.items()}, name)
    overrides = {key: _text_of(key, value, name) for key, value in _flat(topic).items()}
    try:
        return replace(config, topic=config.topic.with_overrides(overrides))
    except InvalidConfig as error:
        raise InvalidConfig(f"{name}: [topic]: {error}") from None


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """TOML reads `retention.ms = 1` as a table in a table: put the dots back."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _text_of(key: str, value: Any, name: str) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
    raise InvalidConfig(f"{name}: {key} can't be {value!r}; allowed is one value: a text, a number, true or false")
