"""Write docs/reference/settings.md out of the tables in the code: `python tools/settings_reference.py`."""

from dataclasses import fields
from pathlib import Path

from runnel.broker.config import BrokerConfig, BrokerSetting
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


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_broker_rows()) + TOPIC_HEAD + "".join(_topic_rows())


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


def _code(text: str) -> str:
    return f"`{text}`" if text and text != str(LONG_MAX) else "none"


if __name__ == "__main__":
    PAGE.write_text(page())
