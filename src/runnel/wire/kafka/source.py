"""What decoder.py and encoder.py share: lines of Python with their indentation, and the sizes of types."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any

from runnel.wire.kafka import messages, notation
from runnel.wire.kafka.classes import ZERO_UUID

CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
NAMES = str.maketrans({"?": "t", "1": "u", "6": "", "s": ""})  # of struct codes inside of Python names


class Source:
    """Python under construction, for one message in one version."""

    def __init__(self, schema: notation.Message, version: int) -> None:
        self.schema = schema
        self.version = version
        self.flexible = version in schema.flexible
        root: Any = getattr(messages, schema.name)
        self.namespace: dict[str, Any] = {name: getattr(root, name) for name in schema.structs}
        self.namespace |= {schema.name: root, "ZERO_UUID": ZERO_UUID}
        self.lines: list[str] = []
        self._depth = 0
        self._named = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        self.line(opening)
        self._depth += 1
        yield
        self._depth -= 1

    def fresh(self, name: str) -> str:
        """A variable that no enclosing loop uses."""
        self._named += 1
        return f"{name}{self._named}"

    def provide(self, name: str, value: Any) -> str:
        self.namespace[name] = value
        return name

    def struct_function(self, codes: str, function: str) -> str:
        """The name under which the compiled code calls a struct's pack or unpack_from."""
        return self.provide(
            f"{function.removesuffix('_from')}_{codes.translate(NAMES)}", getattr(Struct(">" + codes), function)
        )

    def compact(self, field: notation.Field) -> bool:
        return self.flexible and not field.legacy

    def struct_of(self, field: notation.Field) -> notation.Struct:
        return self.schema.structs[field.type]

    def compiled(self, name: str) -> tuple[Callable[..., Any], str]:
        text = "\n".join(self.lines) + "\n"
        exec(compile(text, f"<{self.schema.name} v{self.version} {name}>", "exec"), self.namespace)
        function: Callable[..., Any] = self.namespace[name]
        return function, text
