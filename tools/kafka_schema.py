"""Bring the Kafka schema up to date: `python tools/kafka_schema.py kafka-clients-X.Y.Z.jar`.

Given a kafka-clients jar, or a folder with Kafka's JSON message files, it rewrites schema/messages.txt in our notation
(docs/formats/kafka-schema.md). Then, and without an argument only then, it rewrites what is generated from that file
and from schema/group_records.txt and schema/runnel.txt, which are kept by hand: apis.py and messages.pyi. Facts are
taken over (names, types, versions, tags, defaults), none of Kafka's text.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from runnel.wire.kafka import notation

KAFKA = Path(__file__).parents[1] / "src/runnel/wire/kafka"
SCHEMA = KAFKA / "schema/messages.txt"
STUB = KAFKA / "messages.pyi"
APIS = KAFKA / "apis.py"

HEAD = """\
# Kafka's messages, as docs/formats/kafka-schema.md explains. Written by tools/kafka_schema.py; do not edit.
"""


# --- Kafka's JSON to our notation
def read_json_files(source: Path) -> Iterator[dict[str, Any]]:
    """The message definitions in a jar or below a folder, comments removed."""
    if source.is_dir():
        texts = [path.read_text() for path in sorted(source.rglob("*.json"))]
    else:
        with ZipFile(source) as jar:
            names = [name for name in jar.namelist() if re.fullmatch(r"common/message/\w+\.json", name)]
            texts = [jar.read(name).decode() for name in sorted(names)]
    for text in texts:
        yield json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


def write_schema(source: Path) -> str:
    """All messages that have a version, by key, requests before responses; then those without a key."""
    definitions = [each for each in read_json_files(source) if each["validVersions"] != "none"]
    definitions.sort(key=lambda each: (each.get("apiKey", 1 << 16), each["type"], each["name"]))
    return HEAD + "".join("\n" + write_message(each) for each in definitions)


def write_message(definition: dict[str, Any]) -> str:
    valid = versions_of(definition["validVersions"])
    words = [definition["name"]]
    if "apiKey" in definition:
        words.append(f"key={definition['apiKey']}")
    words.append(f"versions={write_range(valid, notation.EVERY_VERSION)}")
    flexible = clip(versions_of(definition.get("flexibleVersions", "none")), valid)
    if flexible:
        words.append(f"flexible={flexible[0]}+")
    lines = [" ".join(words)]
    for struct in definition.get("commonStructs", []):
        lines.append(f"  {struct['name']}:")
        lines += write_fields(struct["fields"], valid, depth=2)
    lines += write_fields(definition["fields"], valid, depth=1)
    return "\n".join(lines) + "\n"


def write_fields(fields: list[dict[str, Any]], enclosing: range, depth: int) -> Iterator[str]:
    for field in fields:
        versions = clip(versions_of(field["versions"]), enclosing)
        if versions:
            yield "  " * depth + write_field(field, versions, enclosing)
            yield from write_fields(field.get("fields", []), versions, depth + 1)


def write_field(field: dict[str, Any], versions: range, enclosing: range) -> str:
    nullable = clip(versions_of(field.get("nullableVersions", "none")), versions)
    question = "?" + ("" if nullable == versions else write_range(nullable, versions)) if nullable else ""
    words = [snake_case(field["name"]), field["type"] + question]
    if versions != enclosing:
        words.append(write_range(versions, enclosing))
    if "tag" in field:
        assert versions_of(field["taggedVersions"]) == versions_of(field["versions"]), field
        words.append(f"tag={field['tag']}")
    words += write_default(field)
    if field.get("flexibleVersions") == "none":
        words.append("legacy")
    return " ".join(words)


def write_default(field: dict[str, Any]) -> list[str]:
    """The default, unless it is the one its type has anyway.

    An error message that may be null is null where there is no error. Kafka's files say so in their words on each, and
    not always as its default.
    """
    if field["name"].endswith("ErrorMessage") and "nullableVersions" in field:
        return ["default=null"]
    default = str(field.get("default", "")).lower()
    if default.startswith("0x"):
        default = str(int(default, 16))
    return [] if default in ("", "0", "false") else [f"default={default}"]


def versions_of(text: str) -> range:
    return notation.NO_VERSION if text == "none" else notation.parse_versions(text)


def clip(versions: range, enclosing: range) -> range:
    clipped = range(max(versions.start, enclosing.start), min(versions.stop, enclosing.stop))
    return clipped or notation.NO_VERSION


def write_range(versions: range, enclosing: range) -> str:
    if versions.stop == enclosing.stop:
        return f"{versions[0]}+"
    return f"{versions[0]}-{versions[-1]}" if len(versions) > 1 else str(versions[0])


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


# --- our notation to Python
APIS_HEAD = '''\
"""Which requests the Kafka protocol has, and in which versions. Written by tools/kafka_schema.py; do not edit."""

from enum import IntEnum
from typing import NamedTuple

NEVER = 32_768  # above every version: no version of the message is flexible


class ApiVersions(NamedTuple):
    """What the schema knows of one request and its response; a broker may serve less."""

    name: str
    min_version: int
    max_version: int
    flexible_since: int
'''


def write_apis() -> str:
    """The enumeration of keys, and the table of versions."""
    requests = [each for each in map(notation.message, notation.message_names()) if each.name.endswith("Request")]
    members, rows = [], []
    for request in requests:
        name = request.name.removesuffix("Request")
        response = notation.message(name + "Response")
        assert (request.versions, request.flexible) == (response.versions, response.flexible), name
        member = snake_case(name).upper()
        since = request.flexible[0] if request.flexible else "NEVER"
        members.append(f"    {member} = {request.api_key}\n")
        rows.append(
            f'    Api.{member}: ApiVersions("{name}", {request.versions[0]}, {request.versions[-1]}, {since}),\n'
        )
    enum = '\n\nclass Api(IntEnum):\n    """The key of each request."""\n\n' + "".join(members)
    return APIS_HEAD + enum + "\n\nAPI: dict[int, ApiVersions] = {\n" + "".join(rows) + "}\n"


STUB_HEAD = '''\
"""The types of the lazily built classes of messages.py. Written by tools/kafka_schema.py; do not edit."""

from typing import dataclass_transform
from uuid import UUID

from runnel.wire.kafka.primitives import Buffer

@dataclass_transform(kw_only_default=True)
class Message: ...
'''
PYTHON_TYPES = {"string": "str", "bool": "bool", "float64": "float", "uuid": "UUID"}


def write_stub() -> str:
    """The classes as a type checker sees them."""
    return STUB_HEAD + "".join("\n" + "".join(stub_of(name)) for name in notation.message_names())


def stub_of(name: str) -> Iterator[str]:
    message = notation.message(name)
    yield f"class {name}(Message):\n"
    for struct in message.structs.values():
        yield f"    class {struct.name}(Message):\n"
        for field in struct.fields:
            yield f"        {field.name}: {python_type(field, name)} = ...\n"
    for field in message.root.fields:
        yield f"    {field.name}: {python_type(field, name)} = ...\n"
    if not message.structs and not message.root.fields:
        yield "    pass\n"


def python_type(field: notation.Field, owner: str) -> str:
    if field.is_struct:
        type_ = f"{owner}.{field.type}"
    elif field.type in ("bytes", "records"):
        type_ = "Buffer"
    else:
        type_ = PYTHON_TYPES.get(field.type, "int")
    if field.array:
        type_ = f"list[{type_}]"
    absent = field.nullable or (field.is_struct and not field.array and field.tag is not None)
    return f"{type_} | None" if absent else type_


def main() -> None:
    if len(sys.argv) > 1:
        SCHEMA.write_text(write_schema(Path(sys.argv[1])))
    APIS.write_text(write_apis())
    STUB.write_text(write_stub())


if __name__ == "__main__":
    main()
