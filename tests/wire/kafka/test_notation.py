"""The notation: each of its signs, and what the whole schema must hold to."""

import pytest

from runnel.wire.kafka import notation

EXAMPLE = """\
ExampleRequest key=7 versions=2-5 flexible=4+
  Shared:
    id uuid
  plain int32
  since int64 3+ default=-1
  until string 2-4
  once bool 3
  maybe string?
  maybe_since []int8?4+ default=null
  tagged Shared 4+ tag=1
  rows []Row 3+
    name string
    inner []Shared 5+
"""


def fields() -> dict[str, notation.Field]:
    return {field.name: field for field in notation.parse(EXAMPLE).root.fields}


def test_the_head_line() -> None:
    message = notation.parse(EXAMPLE)
    assert (message.name, message.api_key) == ("ExampleRequest", 7)
    assert message.versions == range(2, 6)
    assert 3 not in message.flexible
    assert 4 in message.flexible


def test_the_versions_of_a_field() -> None:
    found = fields()
    assert [version for version in range(2, 6) if found["plain"].at(version)] == [2, 3, 4, 5]
    assert [version for version in range(2, 6) if found["since"].at(version)] == [3, 4, 5]
    assert [version for version in range(2, 6) if found["until"].at(version)] == [2, 3, 4]
    assert [version for version in range(2, 6) if found["once"].at(version)] == [3]


def test_nullable_arrays_tags_and_defaults() -> None:
    found = fields()
    assert 2 in found["maybe"].nullable
    assert 2 not in found["maybe_since"].nullable
    assert 4 in found["maybe_since"].nullable
    assert (found["maybe_since"].type, found["maybe_since"].array) == ("int8", True)
    assert (found["since"].default, found["maybe_since"].default, found["plain"].default) == ("-1", "null", None)
    assert (found["tagged"].tag, found["plain"].tag) == (1, None)


def test_structs_are_those_of_their_lines_and_shared_ones() -> None:
    message = notation.parse(EXAMPLE)
    assert list(message.structs) == ["Shared", "Row"]
    assert [field.name for field in message.structs["Row"].at(4)] == ["name"]
    assert [field.name for field in message.structs["Row"].at(5)] == ["name", "inner"]
    assert [field.name for field in message.root.tagged_at(4)] == ["tagged"]


def test_a_message_that_is_not_there_is_named() -> None:
    with pytest.raises(notation.UnknownMessage, match="'Nothing'"):
        notation.message("Nothing")


@pytest.mark.parametrize("name", notation.message_names())
def test_the_schema_holds_together(name: str) -> None:
    """Every struct named is there, and tags are flexible and distinct."""
    message = notation.message(name)
    for struct in [message.root, *message.structs.values()]:
        for field in struct.fields:
            assert not field.is_struct or field.type in message.structs
            assert field.tag is None or field.versions[0] in message.flexible
        for version in message.versions:
            tags = [field.tag for field in struct.tagged_at(version)]
            assert len(tags) == len(set(tags))


@pytest.mark.parametrize("name", notation.message_names())
def test_each_element_of_an_array_takes_at_least_a_byte(name: str) -> None:
    """Without that, a count could not be held against the bytes left."""
    message = notation.message(name)
    for struct in [message.root, *message.structs.values()]:
        for field in struct.fields:
            for version in message.versions:
                if field.is_struct and field.array and field.at(version) and version not in message.flexible:
                    assert message.structs[field.type].at(version)
