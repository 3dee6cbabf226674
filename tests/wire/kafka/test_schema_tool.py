"""tools/kafka_schema.py: what is checked in is what it writes, and it reads Kafka's files as they are."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kafka_schema", ROOT / "tools/kafka_schema.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stub_is_what_the_schema_gives(tool: ModuleType) -> None:
    assert tool.write_stub() == tool.STUB.read_text()


def test_the_table_of_apis_is_what_the_schema_gives(tool: ModuleType) -> None:
    assert tool.write_apis() == tool.APIS.read_text()


def field(name: str, type_: str, versions: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "versions": versions, "about": "Text that is not taken over.", **more}


DEFINITION = {
    "apiKey": 7,
    "type": "request",
    "name": "ExampleRequest",
    "validVersions": "2-5",
    "flexibleVersions": "4+",
    "commonStructs": [{"name": "Shared", "versions": "0+", "fields": [field("Id", "uuid", "0+")]}],
    "fields": [
        field("PlainValue", "int32", "0+"),
        field("Gone", "int32", "0-1"),
        field("Since", "int64", "3+", default="-1", ignorable=True),
        field("UntilFour", "string", "0-4", nullableVersions="0+"),
        field("MaybeSince", "[]int8", "0+", nullableVersions="4+", default="null"),
        field("Most", "int32", "0+", default="0x7fffffff"),
        field("Zero", "bool", "0+", default="false"),
        field("Tagged", "Shared", "4+", taggedVersions="4+", tag=1),
        field("Rows", "[]Row", "3+", fields=[field("Name", "string", "3+"), field("KRaftId", "int8", "5+")]),
        field("Old", "string", "0+", flexibleVersions="none"),
    ],
}
NOTATION = """\
ExampleRequest key=7 versions=2-5 flexible=4+
  Shared:
    id uuid
  plain_value int32
  since int64 3+ default=-1
  until_four string? 2-4
  maybe_since []int8?4+ default=null
  most int32 default=2147483647
  zero bool
  tagged Shared 4+ tag=1
  rows []Row 3+
    name string
    k_raft_id int8 5+
  old string legacy
"""


@pytest.mark.parametrize("packed", [False, True])
def test_kafka_files_become_our_notation(tool: ModuleType, tmp_path: Path, packed: bool) -> None:
    text = "// A licence.\n" + json.dumps(DEFINITION, indent=1).replace("\n", "\n  // A comment.\n", 1)
    removed = json.dumps({"apiKey": 6, "type": "request", "name": "RemovedRequest", "validVersions": "none"})
    files = {"ExampleRequest.json": text, "RemovedRequest.json": removed}
    source = tmp_path / "kafka-clients.jar" if packed else tmp_path
    if packed:
        with ZipFile(source, "w") as jar:
            for name, content in files.items():
                jar.writestr(f"common/message/{name}", content)
    else:
        for name, content in files.items():
            (tmp_path / name).write_text(content)
    assert tool.write_schema(source) == tool.HEAD + "\n" + NOTATION
