"""Write docs/reference/protocol.md out of the door's own table: `python tools/protocol_reference.py`."""

from pathlib import Path

from runnel.doors.kafka.api_versions import FEATURES, SERVED
from runnel.doors.kafka.door import ANSWERS, PRODUCE_SERVED_SINCE
from runnel.wire.kafka.apis import API, Api

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "protocol.md"

HEAD = f"""# The Kafka protocol

This page is written by `tools/protocol_reference.py`.

The requests that a broker answers, in the versions of which ApiVersions tells clients: those of Kafka 4.3. What
is not served is in Kafka's schema, and left out. The module (in `runnel/doors/kafka`) says what each version brought.
Produce is told from version 0 on, because old clients compress only then, and answered from version
{PRODUCE_SERVED_SINCE} on. RunnelCall is no request of Kafka: Runnel's brokers and its own clients use it
([calls](../formats/calls.md)).

| key | request | versions | not served | answered by |
|---:|---|---|---|---|
"""

MISSING_HEAD = """
## Not answered

A client that sends one of these all the same is disconnected, as by any broker that does not tell of it.

| key | request |
|---:|---|
"""

FEATURES_HEAD = """
## Features

What ApiVersions tells as finalized (KIP-584); clients choose dialects by it.

| feature | level |
|---|---:|
"""


def page() -> str:
    """The whole page."""
    missing = "".join(f"| {api} | {API[api].name} |\n" for api in sorted(API) if api not in SERVED)
    features = "".join(f"| `{name}` | {level} |\n" for name, level in sorted(FEATURES.items()))
    return HEAD + "".join(map(_row, sorted(SERVED))) + MISSING_HEAD + missing + FEATURES_HEAD + features


def _row(api: Api) -> str:
    low, high = SERVED[api]
    known = API[api]
    left_out = [*range(known.min_version, low), *range(high + 1, known.max_version + 1)]
    module = ANSWERS[api].__module__.rpartition(".")[2]
    versions = str(low) if low == high else f"{low} to {high}"
    return f"| {api.value} | {known.name} | {versions} | {', '.join(map(str, left_out))} | `{module}.py` |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
