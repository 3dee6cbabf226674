"""Byte for byte as kio, another implementation of the protocol, in every message and version, both ways."""

import dataclasses
import datetime
import io
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_entity_schema
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from runnel.wire.kafka import decoder, encoder, messages, notation
from runnel.wire.kafka.apis import API

EXAMPLES = settings(max_examples=4, database=None, suppress_health_check=list(HealthCheck))
KINDS = {"Request": EntityType.request, "Response": EntityType.response, "Header": EntityType.header}
MessagesOf = Callable[[str, int], st.SearchStrategy[Any]]


def kio_name(name: str) -> tuple[str, Any]:
    """Where kio keeps a message, and as what."""
    for suffix, kind in KINDS.items():
        if name.endswith(suffix):
            stem = name if suffix == "Header" else name.removesuffix(suffix)
            return snake_case(stem), kind
    return snake_case(name), EntityType.data


def snake_case(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")


def is_message(name: str) -> bool:
    """Whether it travels between Kafka's clients and brokers: kio knows neither our own nor records of groups."""
    return not name.startswith("Runnel") and not name.endswith(("Key", "Value"))


@pytest.mark.parametrize("name", [name for name in notation.message_names() if is_message(name)])
def test_every_version_is_as_kio_has_it(name: str, messages_of: MessagesOf) -> None:
    schema = notation.message(name)
    theirs, kind = kio_name(name)
    for version in schema.versions:
        check_version(schema, version, load_entity_schema(theirs, version, kind), messages_of(name, version))


def check_version(schema: notation.Message, version: int, entity: Any, strategy: st.SearchStrategy[Any]) -> None:
    encode, _ = encoder.compile_encoder(schema, version)
    decode, _ = decoder.compile_decoder(schema, version)
    read, write = entity_reader(entity), entity_writer(entity)

    @EXAMPLES
    @given(strategy)
    def check(message: Any) -> None:
        ours = b"".join(encode(message))
        parsed, size = read(ours, 0)
        assert size == len(ours)
        assert_same(message, parsed, schema, schema.root, version)
        out = io.BytesIO()
        write(out, parsed)
        assert out.getvalue() == ours
        again, position = decode(memoryview(ours), 0)
        assert position == len(ours)
        assert b"".join(encode(again)) == ours

    try:
        check()
    except BaseException as error:
        error.add_note(f"{schema.name} v{version}")
        raise


def assert_same(message: Any, parsed: Any, schema: notation.Message, struct: notation.Struct, version: int) -> None:
    """Field by field, in the order of the schema: kio renames some, and gives others richer types."""
    ours = [field for field in struct.fields if field.at(version)]
    theirs = dataclasses.fields(parsed)
    assert len(ours) == len(theirs)
    for field, their_field in zip(ours, theirs, strict=True):
        mine, other = getattr(message, field.name), getattr(parsed, their_field.name)
        assert field.name.startswith(their_field.name.rstrip("_")), (field.name, their_field.name)
        if not field.is_struct:
            assert plain(mine) == plain(other), field.name
        elif mine is None and field.tag is None:
            assert other is None, field.name
        elif field.array:
            assert len(mine) == len(other)
            for one, another in zip(mine, other, strict=True):
                assert_same(one, another, schema, schema.structs[field.type], version)
        else:
            unset = getattr(messages, schema.name).__dict__[field.type]()
            assert_same(unset if mine is None else mine, other, schema, schema.structs[field.type], version)


def plain(value: Any) -> Any:
    match value:
        case list() | tuple():
            return [plain(one) for one in value]
        case datetime.timedelta():
            return round(value.total_seconds() * 1000)
        case datetime.datetime():
            return round(value.timestamp() * 1000)
        case UUID(int=0):
            return None
        case int():
            return int(value)
        case str():
            return str(value)
        case _:
            return value


def test_kio_has_nothing_that_we_lack() -> None:
    ours = {kio_name(name): set(notation.message(name).versions) for name in notation.message_names()}
    for name, versions in schema_name_map.items():
        for version, kinds in versions.items():
            for kind in kinds:
                assert version in ours[name, kind], (name, version, kind)


def test_the_table_of_apis_is_as_wide_as_kio() -> None:
    pairs = sum(2 * (api.max_version - api.min_version + 1) for api in API.values())
    assert pairs == 606
