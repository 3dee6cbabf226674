"""Compiles a decoder for one message in one version.

Neighbouring fields of fixed size are read by one struct call, together with the length of what follows them.
Structs and arrays are laid out inline as assignments and loops, so that a message is one function without calls.
Each length is checked against the bytes left before anything is made of it; reading past the end raises what
`codec` turns into Malformed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import calcsize
from typing import Any

from runnel.wire.kafka import primitives
from runnel.wire.kafka.classes import default_expression
from runnel.wire.kafka.notation import Field, Message, Struct
from runnel.wire.kafka.source import CODES, NAMES, Source

_SUPPORT = (
    "long_string_size",
    "long_uvarint",
    "skip_tags",
    "uuids",
    "wrong_count",
    "wrong_end",
    "wrong_marker",
    "wrong_size",
)


Decode = Callable[[memoryview, int], tuple[Any, int]]


def compile_decoder(schema: Message, version: int) -> tuple[Decode, str]:
    """A function (frame, position) -> (message, position after it), and its source."""
    return _Decoder(schema, version).compile()


class _Decoder(Source):
    def __init__(self, schema: Message, version: int) -> None:
        super().__init__(schema, version)
        self.bounded = not schema.name.endswith("Response")  # what clients send is trusted less than what brokers send
        self.run: list[tuple[str, str]] = []  # fixed-size fields not yet read: struct code and target
        for name in _SUPPORT:
            self.provide(name, getattr(primitives, name))
        self.provide("new", object.__new__)

    def compile(self) -> tuple[Callable[..., Any], str]:
        with self.block("def decode(frame, p):"):
            self.line("end = len(frame)")
            if self.bounded:
                self.line(f"left = {primitives.ELEMENTS_MAX}")
            self.struct(self.schema.root, "message")
            self.line("return message, p")
        return self.compiled("decode")

    def struct(self, struct: Struct, target: str) -> None:
        self.line(f"{target} = new({struct.name})")
        absent = [field for field in struct.fields if not field.at(self.version)]
        for field in absent + struct.tagged_at(self.version):
            self.line(f"{target}.{field.name} = {default_expression(field)}")
        for field in struct.at(self.version):
            self.field(field, f"{target}.{field.name}")
        if self.flexible:
            self.tags(struct, target)
        self.flush()

    def field(self, field: Field, target: str) -> None:
        if field.array:
            self.array(field, target)
        elif field.is_struct:
            self.nested(field, target)
        else:
            self.value(field, target, nullable=self.version in field.nullable)

    def value(self, field: Field, target: str, *, nullable: bool) -> None:
        if field.type == "string":
            self.sized(field, target, "frame[p:q].tobytes().decode()", nullable=nullable)
        elif field.type in ("bytes", "records"):
            self.sized(field, target, "frame[p:q]", nullable=nullable)
        else:
            self.run.append((CODES[field.type], target))

    def flush(self) -> None:
        """Read the run of fixed-size fields with one call."""
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        if codes == "B":
            self.line(f"{self.run.pop()[1]} = frame[p]; p += 1")
            return
        targets = [self.fresh("raw") if code == "16s" else target for code, target in self.run]
        self.line(f"{', '.join(targets)}, = {self.struct_function(codes, 'unpack_from')}(frame, p)")
        self.line(f"p += {calcsize('>' + codes)}")
        for (_, target), raw in zip(self.run, targets, strict=True):
            if raw != target:
                self.line(f"{target} = uuids[{raw}]")
        self.run.clear()

    def size(self, field: Field, legacy_code: str, long_size: str = "long_uvarint") -> None:
        """Read a length or count into n, with the fields before it."""
        self.run.append(("B" if self.compact(field) else legacy_code, "n"))
        self.flush()
        if self.compact(field):
            self.line(f"if n > 127: n, p = {long_size}(frame, p, n)")

    def sized(self, field: Field, target: str, value: str, *, nullable: bool) -> None:
        if field.type == "string":
            self.size(field, "h", "long_string_size")
        else:
            self.size(field, "i")
        with self.unless_null(field, target, nullable=nullable):
            self.line("q = p + n - 1" if self.compact(field) else "q = p + n")
            self.line(f"if q > end or n < {1 if self.compact(field) else 0}: wrong_size({field.name!r}, n)")
            self.line(f"{target} = {value}")
            self.line("p = q")

    @contextmanager
    def unless_null(self, field: Field, target: str, *, nullable: bool) -> Iterator[None]:
        if not nullable:
            yield
            return
        with self.block(f"if n == {0 if self.compact(field) else -1}:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            yield

    def array(self, field: Field, target: str) -> None:
        self.size(field, "i")
        with self.unless_null(field, target, nullable=self.version in field.nullable):
            self.elements(field, target)

    def elements(self, field: Field, target: str) -> None:
        if self.compact(field):
            self.line("n -= 1")
        least = self.least_bytes_of_value(field)
        room = "end - p" if least == 1 else f"(end - p) // {least}"
        self.check_count(f"n < 0 or n > {room}", field.name)
        if field.type in CODES and field.type != "uuid":
            code = CODES[field.type]
            unpackers = self.provide(f"unpack_many_{code.translate(NAMES)}", primitives.PerCount(code, "unpack_from"))
            self.line(f"{target} = list({unpackers}[n](frame, p))")
            self.line(f"p += {least} * n" if least > 1 else "p += n")
        else:
            self.loop(field, target)

    def check_count(self, wrong: str, what: str) -> None:
        """Refuse n things if `wrong` holds, or if the client has sent too many things by now."""
        if self.bounded:
            self.line("left -= n")
            wrong += " or left < 0"
        self.line(f"if {wrong}: wrong_count({what!r}, n)")

    def loop(self, field: Field, target: str) -> None:
        items, item = self.fresh("items"), self.fresh("item")
        self.line(f"{items} = {target} = []")
        with self.block("for _ in range(n):"):
            if field.is_struct:
                self.struct(self.struct_of(field), item)
            else:
                self.value(field, item, nullable=False)
                self.flush()
            self.line(f"{items}.append({item})")

    def nested(self, field: Field, target: str) -> None:
        value = self.fresh("value")
        if self.version not in field.nullable:
            self.struct(self.struct_of(field), value)
            self.line(f"{target} = {value}")
            return
        self.run.append(("b", "n"))
        self.flush()
        with self.block("if n == 1:"):
            self.struct(self.struct_of(field), value)
            self.line(f"{target} = {value}")
        with self.block("else:"):
            self.line(f"if n != -1: wrong_marker({field.name!r}, n)")
            self.line(f"{target} = None")

    def tags(self, struct: Struct, target: str) -> None:
        self.run.append(("B", "n"))
        self.flush()
        known = struct.tagged_at(self.version)
        with self.block("if n:"):
            self.check_count(f"n > {primitives.TAGGED_FIELDS_MAX}", "tagged fields")
            if known:
                with self.block("for _ in range(n):"):
                    self.tagged_field(known, target)
            else:
                self.line("p = skip_tags(frame, p, n)")

    def tagged_field(self, known: list[Field], target: str) -> None:
        stop = self.fresh("stop")
        for name in ("tag", "n"):
            self.line(f"{name} = frame[p]; p += 1")
            self.line(f"if {name} > 127: {name}, p = long_uvarint(frame, p, {name})")
        self.line(f"{stop} = p + n")
        self.line(f"if {stop} > end: wrong_size('a tagged field', n)")
        opening = "if"
        for field in known:
            with self.block(f"{opening} tag == {field.tag}:"):
                self.field(field, f"{target}.{field.name}")
                self.flush()
                self.line(f"if p != {stop}: wrong_end({field.name!r})")
            opening = "elif"
        self.line(f"else: p = {stop}")

    def least_bytes_of_value(self, field: Field) -> int:
        """The fewest bytes that one value of the field (one element, for an array) takes."""
        if field.is_struct:
            return self.least_bytes_of_struct(self.struct_of(field))
        if field.type in CODES:
            return calcsize(">" + CODES[field.type])
        return 1 if self.compact(field) else 2 if field.type == "string" else 4

    def least_bytes_of_struct(self, struct: Struct) -> int:
        return sum(map(self.least_bytes_of_field, struct.at(self.version))) + self.flexible

    def least_bytes_of_field(self, field: Field) -> int:
        if field.array:
            return 1 if self.compact(field) else 4
        if field.is_struct and self.version in field.nullable:
            return 1
        return self.least_bytes_of_value(field)
