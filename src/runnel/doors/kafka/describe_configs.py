# DescribeConfigs (key 32), v1-v4.  v1 synonyms, v3 types and documentation, v4 flexible
"""DescribeConfigs: the settings of topics, brokers and groups, and where each comes from."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from runnel.broker.broker import Broker
from runnel.broker.config import BROKER_SETTINGS as FILE_SETTINGS
from runnel.broker.config import field_name as file_field_name
from runnel.cluster.config_rules import BROKER_SETTINGS as DYNAMIC_SETTINGS
from runnel.cluster.config_rules import OWN_SETTINGS, RATE_DEFAULT, topic_defaults
from runnel.cluster.image import CLUSTER, Overrides, Topic
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model import queue_config
from runnel.model.errors import InvalidRequest, RunnelError
from runnel.model.topic_config import SETTINGS, Kind, Setting, TopicConfig, field_name, shown
from runnel.wire.kafka import messages as m

TOPIC = 2
BROKER = 4
GROUP = 32
SOURCE_TOPIC = 1
SOURCE_BROKER = 2
SOURCE_ALL_BROKERS = 3
SOURCE_FILE = 4
SOURCE_DEFAULT = 5
SOURCE_GROUP = 8
TYPES: dict[Kind, int] = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}
Response = m.DescribeConfigsResponse


@dataclass(slots=True)
class Entry:
    """One setting in force; the places it could come from, nearest first."""

    name: str
    value: str
    source: int
    kind: Kind
    doc: str
    read_only: bool = False
    synonyms: list[tuple[str, str, int]] = field(default_factory=list)

    @property
    def sensitive(self) -> bool:
        """Whether its value is a secret: clients are told that there is one, and not which."""
        return queue_config.canonical(self.name) in queue_config.SECRETS


async def describe_configs(request: m.DescribeConfigsRequest, call: Call) -> m.DescribeConfigsResponse:
    return Response(results=[_described(resource, request, call) for resource in request.resources])


def _described(
    resource: m.DescribeConfigsRequest.DescribeConfigsResource, request: m.DescribeConfigsRequest, call: Call
) -> m.DescribeConfigsResponse.DescribeConfigsResult:
    answer = Response.DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        entries = _entries(resource, call.broker)
    except RunnelError as error:
        answer.error_code, answer.error_message = code_of(error), text_of(error)
        return answer
    wanted = resource.configuration_keys
    answer.configs = [
        Response.DescribeConfigsResourceResult(
            name=entry.name,
            value=None if entry.sensitive else entry.value,
            read_only=entry.read_only,
            is_sensitive=entry.sensitive,
            config_source=entry.source,
            synonyms=_synonyms(entry) if request.include_synonyms and not entry.sensitive else [],
            config_type=TYPES[entry.kind],
            documentation=entry.doc if request.include_documentation else None,
        )
        for entry in entries
        if wanted is None or entry.name in wanted
    ]
    return answer


def _synonyms(entry: Entry) -> list[m.DescribeConfigsResponse.DescribeConfigsSynonym]:
    return [
        Response.DescribeConfigsSynonym(name=name, value=value, source=source) for name, value, source in entry.synonyms
    ]


def _entries(resource: m.DescribeConfigsRequest.DescribeConfigsResource, broker: Broker) -> Iterable[Entry]:
    if resource.resource_type == TOPIC:
        broker.topics.check_name(resource.resource_name)
        return topic_entries(broker.image.topic_named(resource.resource_name), broker)
    if resource.resource_type == BROKER:
        return _broker_entries(resource.resource_name, broker)
    if resource.resource_type == GROUP:
        return group_entries(broker.image.group_settings(resource.resource_name))
    raise InvalidRequest(
        f"settings of resource type {resource.resource_type} are not known: 2 is a topic, 4 a broker, 32 a group"
    )


def topic_entries(topic: Topic, broker: Broker) -> list[Entry]:
    """Every setting of a topic, with what would hold if the topic did not say."""
    base = broker.config.topic
    defaults = topic_defaults(broker.image, broker.id, base)
    entries = []
    for name, setting in SETTINGS.items():
        below = _place(name, defaults, base)
        synonyms = [below]
        if name in topic.config:
            synonyms.insert(0, (name, topic.config[name], SOURCE_TOPIC))
        _, value, source = synonyms[0]
        entries.append(Entry(name, value, source, setting.kind, setting.doc, synonyms=synonyms))
    return entries


def group_entries(own: Mapping[str, str]) -> list[Entry]:
    """Every setting of a queue or share group, by our names, and then by Kafka's where it has one."""
    defaults = queue_config.defaults_of(own)
    entries = [_group_entry(name, name, own, defaults) for name in queue_config.SETTINGS]
    return entries + [_group_entry(alias, name, own, defaults) for alias, name in queue_config.ALIASES.items()]


def _group_entry(shown_as: str, name: str, own: Mapping[str, str], defaults: queue_config.QueueConfig) -> Entry:
    setting = queue_config.SETTINGS[name]
    synonyms = [(shown_as, shown(getattr(defaults, field_name(name))), SOURCE_DEFAULT)]
    if name in own:
        synonyms.insert(0, (shown_as, queue_config.shown_value(name, own[name]), SOURCE_GROUP))
    _, value, source = synonyms[0]
    return Entry(shown_as, value, source, setting.kind, setting.doc, synonyms=synonyms)


def _place(name: str, defaults: TopicConfig, base: TopicConfig) -> tuple[str, str, int]:
    """(name of the setting that decides, its value, where it stands) for a topic that does not say."""
    broker_name = BROKER_NAMES.get(name, name)
    value = getattr(defaults, field_name(name))
    if value != getattr(base, field_name(name)):
        return broker_name, shown(value), SOURCE_ALL_BROKERS
    if value != getattr(TopicConfig(), field_name(name)):
        return broker_name, shown(value), SOURCE_FILE
    return broker_name, shown(value), SOURCE_DEFAULT


BROKER_NAMES = {topic_name: broker_name for broker_name, topic_name in DYNAMIC_SETTINGS.items()}


def _broker_entries(name: str, broker: Broker) -> list[Entry]:
    """An empty name asks for what is set for all brokers."""
    if name not in ("", str(broker.id)):
        raise InvalidRequest(f"broker {name} was asked about, but this is broker {broker.id}: ask that one")
    entries = _dynamic_entries(broker, None if name == "" else str(broker.id))
    return entries if name == "" else [*entries, *_file_entries(broker), _advertised(broker)]


def _dynamic_entries(broker: Broker, key: str | None) -> list[Entry]:
    everywhere = broker.image.configs.get(CLUSTER, Overrides()).values
    here = broker.image.configs.get(key, Overrides()).values if key else {}
    entries = []
    for name, setting, value, source in _dynamic_settings(broker.config.topic):
        synonyms = [(name, value, source)]
        if name in everywhere:
            synonyms.insert(0, (name, everywhere[name], SOURCE_ALL_BROKERS))
        if name in here:
            synonyms.insert(0, (name, here[name], SOURCE_BROKER))
        if key is None and name not in everywhere:
            continue
        entries.append(Entry(name, synonyms[0][1], synonyms[0][2], setting.kind, setting.doc, synonyms=synonyms))
    return entries


def _dynamic_settings(base: TopicConfig) -> Iterator[tuple[str, Setting, str, int]]:
    """(name, setting, value, source) of what can be changed while running, as the broker was started."""
    for name, topic_name in DYNAMIC_SETTINGS.items():
        value = getattr(base, field_name(topic_name))
        default = getattr(TopicConfig(), field_name(topic_name))
        yield name, SETTINGS[topic_name], shown(value), SOURCE_DEFAULT if value == default else SOURCE_FILE
    for name, setting in OWN_SETTINGS.items():
        yield name, setting, str(RATE_DEFAULT), SOURCE_DEFAULT


def _file_entries(broker: Broker) -> list[Entry]:
    """What the broker was started with: it can't be changed while running."""
    defaults = {f.name: f.default for f in fields(broker.config)}
    entries = []
    for key, setting in FILE_SETTINGS.items():
        if setting.kafka_name is None:
            continue
        value = getattr(broker.config, file_field_name(key))
        source = SOURCE_DEFAULT if value == defaults[file_field_name(key)] else SOURCE_FILE
        entry = Entry(setting.kafka_name, shown(value), source, _kind(value), setting.doc, read_only=True)
        entry.synonyms = [(setting.kafka_name, entry.value, source)]
        entries.append(entry)
    return entries


def _advertised(broker: Broker) -> Entry:
    """Where clients find this broker: tools look for it under this name."""
    name, endpoint = "advertised.listeners", broker.image.brokers[broker.id].listeners["kafka"]
    value = f"PLAINTEXT://{endpoint.host}:{endpoint.port}"
    synonyms = [(name, value, SOURCE_FILE)]
    return Entry(name, value, SOURCE_FILE, "string", "where clients find this broker", True, synonyms)


def _kind(value: Any) -> Kind:
    match value:
        case bool():
            return "boolean"
        case int():
            return "long"
    return "string"
