"""Reads the notation in which schema/messages.txt states Kafka's messages, schema/group_records.txt the records of
groups, and schema/runnel.txt our own messages (docs/formats/kafka-schema.md).

Rule 1: a message is parsed when it is first asked for; importing this module reads nothing.
Rule 2: a version range is a `range`, so that `version in field.versions` is the one question asked of it.
"""

from collections.abc import Iterator
from functools import cache
from pkgutil import get_data
from typing import NamedTuple

VERSION_END = 32_768  # versions are int16
EVERY_VERSION = range(VERSION_END)
NO_VERSION = range(0)


class Field(NamedTuple):
    name: str
    type: str  # of the element, for an array; a struct's name begins with a capital letter
    array: bool
    versions: range
    nullable: range
    tag: int | None
    default: str | None  # as written; None where the type's own default holds
    legacy: bool  # never compact, even in flexible versions

    @property
    def is_struct(self) -> bool:
        return self.type[0].isupper()

    def at(self, version: int) -> bool:
        return version in self.versions


class Struct(NamedTuple):
    name: str
    fields: tuple[Field, ...]

    def at(self, version: int) -> list[Field]:
        """The fields that travel in this version in their order, without the tagged ones."""
        return [field for field in self.fields if field.at(version) and field.tag is None]

    def tagged_at(self, version: int) -> list[Field]:
        """The tagged fields of this version, by tag."""
        tagged = [(field.tag, field) for field in self.fields if field.at(version) and field.tag is not None]
        return [field for _, field in sorted(tagged, key=lambda pair: pair[0])]


class Message(NamedTuple):
    name: str
    api_key: int | None  # None: a header, or data inside of other messages
    versions: range
    flexible: range
    root: Struct
    structs: dict[str, Struct]  # every struct below the root, by name


class UnknownMessage(LookupError):
    """The schema has no message of this name."""


@cache
def schema_text() -> str:
    """Kafka's messages, then our own; from a folder, or from the zip file in which a cluster got the package."""
    read = [get_data(__package__, f"schema/{name}.txt") for name in ("messages", "group_records", "runnel")]
    return "".join("\n" + (text or b"").decode() for text in read)


@cache
def message(name: str) -> Message:
    """The message of this name, as the schema states it."""
    begin = schema_text().find(f"\n{name} ")
    if begin < 0:
        raise UnknownMessage(f"the Kafka schema has no message {name!r}: schema/ lists those there are")
    end = schema_text().find("\n\n", begin)
    return parse(schema_text()[begin + 1 : end if end > 0 else None])


def message_names() -> list[str]:
    """The names of all messages, in the schema's order."""
    heads = (line for line in schema_text().splitlines() if line and line[0].isupper())
    return [head.split()[0] for head in heads]


def parse(block: str) -> Message:
    """Read one message: its head line, and its fields below, indented by depth."""
    head, *lines = block.strip().splitlines()
    name, *attributes = head.split()
    given = dict(attribute.split("=") for attribute in attributes)
    versions = parse_versions(given["versions"])
    structs: dict[str, Struct] = {}
    body = [((len(line) - len(line.lstrip())) // 2, line.split()) for line in lines]
    root = _parse_struct(name, body, versions, structs)
    return Message(
        name=name,
        api_key=int(given["key"]) if "key" in given else None,
        versions=versions,
        flexible=parse_versions(given["flexible"]) if "flexible" in given else NO_VERSION,
        root=root,
        structs=structs,
    )


def parse_versions(text: str) -> range:
    """'4-18', '12+' or '3'."""
    first, dash, last = text.partition("-")
    if text.endswith("+"):
        return range(int(text[:-1]), VERSION_END)
    return range(int(first), int(last if dash else first) + 1)


Line = tuple[int, list[str]]  # depth and words


def _parse_struct(name: str, lines: list[Line], versions: range, structs: dict[str, Struct]) -> Struct:
    fields = []
    for words, below in _siblings(lines):
        if words[0].endswith(":"):  # a struct that several fields share
            shared = words[0][:-1]
            structs[shared] = _parse_struct(shared, below, versions, structs)
            continue
        field = _parse_field(words, versions)
        fields.append(field)
        if below:
            structs[field.type] = _parse_struct(field.type, below, field.versions, structs)
    return Struct(name, tuple(fields))


def _siblings(lines: list[Line]) -> Iterator[tuple[list[str], list[Line]]]:
    """Each line of the outermost depth, with the deeper lines that follow it."""
    position = 0
    while position < len(lines):
        depth, words = lines[position]
        end = position + 1
        while end < len(lines) and lines[end][0] > depth:
            end += 1
        yield words, lines[position + 1 : end]
        position = end


def _parse_field(words: list[str], versions: range) -> Field:
    name, type_, *rest = words
    if rest and rest[0][0].isdigit():
        versions = parse_versions(rest.pop(0))
    given = dict(word.partition("=")[::2] for word in rest)
    type_, nullable, nullable_versions = type_.partition("?")
    return Field(
        name=name,
        type=type_.removeprefix("[]"),
        array=type_.startswith("[]"),
        versions=versions,
        nullable=parse_versions(nullable_versions) if nullable_versions else versions if nullable else NO_VERSION,
        tag=int(given["tag"]) if "tag" in given else None,
        default=given.get("default"),
        legacy="legacy" in given,
    )
