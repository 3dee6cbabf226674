"""Builds the class of a message, and the classes of the structs inside of it, from the schema.

Each has slots, and a constructor by keyword with the schema's defaults; an unknown keyword is a TypeError.
"""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from runnel.wire.kafka import notation

ZERO_UUID = UUID(int=0)
_NEW: Any = object()  # stands for a default that every message needs a fresh one of


class Message:
    """What all messages and the structs inside of them share: they compare and show by their fields."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__qualname__}({fields})"


def default_expression(field: notation.Field) -> str:
    """Python source of the field's default; what ends in a bracket makes a new value each time."""
    if field.default == "null" or (field.type == "records" and field.nullable):
        return "None"
    if field.array:
        return "[]"
    if field.is_struct:
        return "None" if field.tag is not None else f"{field.type}()"
    if field.type == "bool":
        return str(field.default == "true")
    if field.type == "float64":
        return field.default or "0.0"
    if field.default is not None:
        return field.default
    return {"string": "''", "bytes": "b''", "records": "b''", "uuid": "ZERO_UUID"}.get(field.type, "0")


def build(schema: notation.Message) -> type[Message]:
    namespace = {"Message": Message, "ZERO_UUID": ZERO_UUID, "NEW": _NEW}
    for struct in schema.structs.values():
        _define(struct, f"{schema.name}.{struct.name}", namespace)
    root = _define(schema.root, schema.name, namespace)
    for name in schema.structs:
        setattr(root, name, namespace[name])
    return root


def _define(struct: notation.Struct, qualified_name: str, namespace: dict[str, Any]) -> type[Message]:
    initialiser: dict[str, Any] = {}
    exec("\n".join(_initialiser(struct)), namespace, initialiser)
    slots = tuple(field.name for field in struct.fields)
    body = {
        "__slots__": slots,
        "__module__": "runnel.wire.kafka.messages",
        "__qualname__": qualified_name,
        **initialiser,
    }
    built: type[Message] = type(struct.name, (Message,), body)
    namespace[struct.name] = built
    return built


def _initialiser(struct: notation.Struct) -> Iterator[str]:
    if not struct.fields:
        yield "def __init__(self): pass"
        return
    defaults = {field.name: default_expression(field) for field in struct.fields}
    fresh = {name for name, default in defaults.items() if default[-1] in ")]"}
    arguments = ", ".join(f"{name}={'NEW' if name in fresh else default}" for name, default in defaults.items())
    yield f"def __init__(self, *, {arguments}):"
    for name, default in defaults.items():
        yield f"    self.{name} = {f'{default} if {name} is NEW else {name}' if name in fresh else name}"
