"""Compiles an encoder for one message in one version.

Neighbouring fields of fixed size are packed by one struct call, together with the length of what follows them.
Structs and arrays are laid out inline as assignments and loops that collect pieces of bytes, joined at the end.
Records are never joined: each closes the part before it and is a part itself, as the object that was given.
"""

from collections.abc import Callable
from typing import Any

from runnel.wire.kafka import primitives
from runnel.wire.kafka.classes import default_expression
from runnel.wire.kafka.notation import Field, Message, Struct
from runnel.wire.kafka.source import CODES, NAMES, Source

_SUPPORT = ("one_byte", "tag_section", "tagged_field", "uvarint", "uvarint_of_string")


Encode = Callable[[Any], list[primitives.Buffer]]


def compile_encoder(schema: Message, version: int) -> tuple[Encode, str]:
    """A function message -> parts (at least one), and its source."""
    return _Encoder(schema, version).compile()


class _Encoder(Source):
    def __init__(self, schema: Message, version: int) -> None:
        super().__init__(schema, version)
        self.run: list[tuple[str, str]] = []  # fixed-size values not yet written: struct code and expression
        self.write = "write"  # the function that takes the next piece
        for name in _SUPPORT:
            self.provide(name, getattr(primitives, name))
        self.provide("join", b"".join)

    def compile(self) -> tuple[Callable[..., Any], str]:
        with self.block("def encode(message):"):
            self.line("parts = []")
            self.line("pieces = []")
            self.line("write = pieces.append")
            self.struct(self.schema.root, "message")
            self.flush()
            self.line("parts.append(join(pieces))")
            self.line("return parts")
        return self.compiled("encode")

    def struct(self, struct: Struct, value: str) -> None:
        for field in struct.at(self.version):
            self.field(field, f"{value}.{field.name}")
        if self.flexible:
            self.tags(struct, value)

    def field(self, field: Field, value: str) -> None:
        if field.array:
            self.array(field, value)
        elif field.is_struct:
            self.nested(field, value)
        else:
            self.value(field, value, nullable=self.version in field.nullable)

    def value(self, field: Field, value: str, *, nullable: bool) -> None:
        if field.type == "string":
            self.string(field, value, nullable=nullable)
        elif field.type in ("bytes", "records"):
            self.buffer(field, value, nullable=nullable)
        else:
            self.run.append((CODES[field.type], f"{value}.bytes" if field.type == "uuid" else value))

    def flush(self) -> None:
        """Write the run of fixed-size values with one call."""
        if self.run:
            self.line(f"{self.write}({self.packed(self.run)})")
            self.run.clear()

    def packed(self, run: list[tuple[str, str]]) -> str:
        codes = "".join(code for code, _ in run)
        if not codes.strip("x"):
            return repr(bytes(len(codes)))
        values = ", ".join(value for _, value in run if value)
        return f"{self.struct_function(codes, 'pack')}({values})"

    def size(self, field: Field, legacy_code: str, long_size: str = "uvarint") -> None:
        """Write n, a length or count, with the fixed-size values before it."""
        if not self.compact(field):
            self.run.append((legacy_code, "n"))
            self.flush()
            return
        short = self.packed([*self.run, ("B", "n")]) if self.run else "one_byte[n]"
        self.line(f"if n < 128: {self.write}({short})")
        before = self.packed(self.run) + " + " if self.run else ""
        self.line(f"else: {self.write}({before}{long_size}(n))")
        self.run.clear()

    def length(self, field: Field, value: str, *, nullable: bool, empty: str, convert: str = "") -> None:
        """Set x to the value, and n to the number that says how long it is."""
        self.line(f"x = {value}")
        measured = f"{convert}n = len(x){' + 1' if self.compact(field) else ''}"
        if nullable:
            self.line(f"if x is None: x = {empty}; n = {0 if self.compact(field) else -1}")
            self.line(f"else: {measured}")
        else:
            self.line(measured)

    def string(self, field: Field, value: str, *, nullable: bool) -> None:
        self.length(field, value, nullable=nullable, empty="b''", convert="x = x.encode(); ")
        self.size(field, "h", "uvarint_of_string")
        self.line(f"{self.write}(x)")

    def buffer(self, field: Field, value: str, *, nullable: bool) -> None:
        self.length(field, value, nullable=nullable, empty="b''")
        self.size(field, "i")
        if field.type == "bytes":
            self.line(f"{self.write}(x)")
            return
        with self.block("if x:"):
            self.line("parts.append(join(pieces))")
            self.line("pieces.clear()")
            self.line("parts.append(x)")

    def array(self, field: Field, value: str) -> None:
        self.length(field, value, nullable=self.version in field.nullable, empty="()")
        if field.type in CODES and field.type != "uuid":
            self.numbers(field)
            return
        self.size(field, "i")
        item = self.fresh("item")
        with self.block(f"for {item} in x:"):
            if field.is_struct:
                self.struct(self.struct_of(field), item)
            else:
                self.value(field, item, nullable=False)
            self.flush()

    def numbers(self, field: Field) -> None:
        """Write an array of numbers with one call, together with its count and the values before it."""
        code = CODES[field.type]
        head = [*self.run, ("B" if self.compact(field) else "i", "n")]
        codes, values = "".join(code for code, _ in head), ", ".join(value for _, value in head if value)
        name = f"pack_{codes.translate(NAMES)}_many_{code.translate(NAMES)}"
        together = self.provide(name, primitives.PerCount(code, "pack", head=codes))
        if not self.compact(field):
            self.line(f"{self.write}({together}[len(x)]({values}, *x))")
        else:
            self.line(f"if n < 128: {self.write}({together}[len(x)]({values}, *x))")
            alone = self.provide(f"pack_many_{code.translate(NAMES)}", primitives.PerCount(code, "pack"))
            before = self.packed(self.run) + " + " if self.run else ""
            self.line(f"else: {self.write}({before}uvarint(n) + {alone}[len(x)](*x))")
        self.run.clear()

    def nested(self, field: Field, value: str) -> None:
        inner = self.fresh("value")
        self.line(f"{inner} = {value}")
        if self.version not in field.nullable:
            self.struct(self.struct_of(field), inner)
            return
        self.flush()
        self.line(f"if {inner} is None: {self.write}(b'\\xff')")
        with self.block("else:"):
            self.line(f"{self.write}(b'\\x01')")
            self.struct(self.struct_of(field), inner)
            self.flush()

    def tags(self, struct: Struct, value: str) -> None:
        known = struct.tagged_at(self.version)
        if not known:
            self.run.append(("x", ""))
            return
        before = list(self.run)
        conditions = [self.differs(field, f"{value}.{field.name}") for field in known]
        with self.block(f"if {' or '.join(conditions)}:"):
            self.flush()
            fields = self.fresh("fields")
            self.line(f"{fields} = []")
            for field, condition in zip(known, conditions, strict=True):
                with self.block(f"if {condition}:"):
                    self.tagged_field(field, f"{value}.{field.name}", fields)
            self.line(f"{self.write}(tag_section({fields}))")
        self.line(f"else: {self.write}({self.packed([*before, ('x', '')])})")

    def tagged_field(self, field: Field, value: str, fields: str) -> None:
        outer, tagged = self.write, self.fresh("tagged")
        self.line(f"{tagged} = []")
        self.write = f"{tagged}.append"
        self.field(field, value)
        self.flush()
        self.write = outer
        self.line(f"{fields}.append(tagged_field({field.tag}, {tagged}))")

    def differs(self, field: Field, value: str) -> str:
        """Whether the value is another than the default, which is not sent."""
        default = default_expression(field)
        if field.is_struct and not field.array:
            unset = self.provide(f"default_{field.type}", self.namespace[field.type]())
            return f"{value} is not None and {value} != {unset}"
        if default == "None":
            return f"{value} is not None"
        if field.type == "uuid" and not field.array:
            return f"{value}.int"
        return value if default in ("[]", "0", "''", "b''", "False") else f"{value} != {default}"
