"""Write docs/reference/settings.md out of the tables in the code: `python tools/settings_reference.py`."""

from dataclasses import fields
from pathlib import Path

from runnel.broker.config import BrokerConfig, BrokerSetting
from runnel.model.queue_config import ALIASES, QueueConfig
from runnel.model.topic_config import LONG_MAX, Setting, TopicConfig, shown

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"

HEAD = """# Settings

This page is written by `tools/settings_reference.py`.

## Of a broker

By flag (`runnel serve --help` shows which), in the environment, or in the TOML file of `--config`. They hold from start
to stop; DescribeConfigs shows them under Kafka's names.

| key | environment | default | allowed | what it does |
|---|---|---|---|---|
"""

TOPIC_HEAD = """
## Of a topic

By `runnel topic create NAME -c key=value`, `runnel topic alter`, or any Kafka admin client; defaults for all topics
stand in the `[topic]` table of the file. Changes hold at once.

| key | default | allowed | what it does |
|---|---|---|---|
"""


QUEUE_HEAD = """
## Of a queue

By `runnel queue create NAME -c key=value`, `runnel queue alter`, or any Kafka admin client, as the configuration of the
group of the queue's name. Changes hold at once. Kafka's names, for share groups, mean the same. In names of topics
`{queue}` stands for the name of the queue. A share group that nobody created as a queue has `start=latest`,
`isolation=read_uncommitted`, `retry.backoff.ms=0` and no retry topic as its defaults, as in Kafka. A queue with a
`webhook.url` has `attempts.max=40` and `retry.backoff.max.ms=1800000`: it tries for hours.

| key | Kafka's name | default | allowed | what it does |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    topics, queues = "".join(_topic_rows()), "".join(_queue_rows())
    return HEAD + "".join(_broker_rows()) + TOPIC_HEAD + topics + QUEUE_HEAD + queues


def _broker_rows() -> list[str]:
    rows = []
    for field in fields(BrokerConfig):
        setting = field.metadata.get("setting")
        if isinstance(setting, BrokerSetting):
            default = _code(shown(field.default))
            rows.append(f"| `{setting.key}` | `{setting.variable}` | {default} | {setting.allowed} | {setting.doc} |\n")
    return rows


def _topic_rows() -> list[str]:
    rows = []
    for field in fields(TopicConfig):
        setting = field.metadata["setting"]
        assert isinstance(setting, Setting)
        allowed = setting.allowed.replace(f" to {LONG_MAX}", " on")
        rows.append(f"| `{setting.name}` | {_code(shown(field.default))} | {allowed} | {setting.doc} |\n")
    return rows


def _queue_rows() -> list[str]:
    rows = []
    names = {ours: kafkas for kafkas, ours in ALIASES.items()}
    for field in fields(QueueConfig):
        setting = field.metadata["setting"]
        assert isinstance(setting, Setting)
        kafkas = f"`{names[setting.name]}`" if setting.name in names else ""
        allowed = setting.allowed.replace(f" to {LONG_MAX}", " on")
        rows.append(f"| `{setting.name}` | {kafkas} | {_code(shown(field.default))} | {allowed} | {setting.doc} |\n")
    return rows


def _code(text: str) -> str:
    if text == str(LONG_MAX):
        return f"none (`{LONG_MAX}`)"
    return f"`{text}`" if text else "none"


if __name__ == "__main__":
    PAGE.write_text(page())
