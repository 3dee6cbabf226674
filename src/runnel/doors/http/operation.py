"""Operations: typed async functions, and all that follows from their types and docstrings.

Rule 1: an operation is an async function with a docstring; its address and its status are all that is said besides,
        whether it may be done in part, which is answered with 207 and the same shape, and of a GET whether it changes
        something, which few may (see `pages.py`).
        Validation, the OpenAPI document, the page of docs and its examples come from the function itself.
Rule 2: its first parameter is the `Call`. One that its path names comes from the path, one named `body` is the body,
        one marked with `Header` comes from a header, every other one from the query. What has a default is optional.
Rule 3: what nobody knows is refused: a query parameter with a typing error must not be taken for none, nor must a body
        where none is taken.
Rule 4: the docstring ends with an example, indented: `METHOD /path?query {"a": "body"}`.
Rule 5: where Python leaves docstrings out (-OO), everything works but the texts and examples of the docs.

    @operation("POST /v1/topics", status=201)
    async def create_topic(call: Call, body: NewTopic) -> TopicView:
        '''Create a topic.

            POST /v1/topics {"name": "orders", "partitions": 3}
        '''
"""

import inspect
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl, urlsplit

import msgspec

from runnel.doors.http.call import Call
from runnel.doors.http.problems import InvalidInput, MalformedBody
from runnel.model.json_values import must_be_utf8
from runnel.model.unreadable import UNREADABLE

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
QUERY_FIELDS_MAX: Final = 100
DOCSTRINGS: Final = sys.flags.optimize < 2  # else Python was told to leave them out (-OO, PYTHONOPTIMIZE=2)
SOCKET: Final = "SOCKET"  # the method of operations that speak WebSocket

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
T = TypeVar("T")


class Struct(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON object that an operation takes: what it does not know is refused."""


class View(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A JSON object that an operation answers; what is as usual is left out."""


@dataclass(frozen=True, slots=True)
class Header:
    """Marks a parameter that comes from a header: `Annotated[str | None, Header("Idempotency-Key")]`."""

    name: str


@dataclass(slots=True)
class Reply:
    """An answer that is not simply a value as JSON."""

    content: bytes
    content_type: str = JSON
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()


@dataclass(slots=True)
class Stream:
    """An answer that goes on: each chunk is sent as it comes; it ends with the client (`Call.peer`)."""

    chunks: AsyncGenerator[bytes, None]
    content_type: str
    headers: Sequence[tuple[bytes, bytes]] = ()


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str  # as the function calls it
    shown: str  # as the client does
    place: str  # path, query or header
    type: Any
    default: Any = msgspec.NODEFAULT

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT


@dataclass(frozen=True, slots=True)
class Example:
    """One request that works."""

    method: str
    target: str  # path and query
    body: Any = None

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query))

    @property
    def segments(self) -> list[str]:
        return urlsplit(self.target).path.split("/")[1:]


@dataclass(slots=True)
class Operation:
    """One function with its address."""

    method: str
    path: str
    function: Callable[..., Awaitable[Any]]
    status: int
    summary: str
    description: str
    example: Example
    parameters: tuple[Parameter, ...]
    body: Any  # its type; None without one
    result: Any
    tag: str
    partly: bool = False  # some of what is asked for may be done, and the rest not
    changing_get: bool = False
    body_is_optional: bool = False  # it is None then
    segments: tuple[str, ...] = field(init=False)
    decode: Callable[[bytes], Any] | None = field(init=False)
    _inputs: Any = field(init=False)
    _names: tuple[str, ...] = field(init=False)
    _path_names: tuple[str, ...] = field(init=False)
    _headers: tuple[Parameter, ...] = field(init=False)
    _in_query: dict[str, bool] = field(init=False)  # whether it takes several values

    def __post_init__(self) -> None:
        self.segments = tuple(self.path.split("/")[1:])
        self.decode = None if self.body in (None, bytes) else msgspec.json.Decoder(self.body).decode
        fields = [(p.name, p.type) if p.required else (p.name, p.type, p.default) for p in self.parameters]
        fields.sort(key=len)  # those without a default first
        self._inputs = msgspec.defstruct("Inputs", fields, forbid_unknown_fields=True) if fields else None
        msgspec.json.Decoder(self._inputs or _Nothing)  # says what is wrong with a type here, not in a request
        self._names = tuple(p.name for p in self.parameters)
        self._path_names = tuple(segment[1:-1] for segment in self.segments if segment.startswith("{"))
        self._in_query = {p.name: _is_list(p.type) for p in self.parameters if p.place == "query"}
        self._headers = tuple(p for p in self.parameters if p.place == "header")

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "operation")

    @property
    def takes_body(self) -> bool:
        return self.body is not None

    def bind(self, call: Call, values: list[str], query: bytes, body: bytes, **more: Any) -> Awaitable[Any]:
        """Call the function with what the request says; raises what is wrong with it."""
        if self._inputs is not None or query:
            inputs = self._inputs_of(call, values, query)
            for name in self._names:
                more[name] = getattr(inputs, name)
        if self.body is not None:
            more["body"] = self._body(body)
        return self.function(call, **more)

    def _inputs_of(self, call: Call, values: list[str], query: bytes) -> Any:
        texts: dict[str, Any] = self._query(query) if query else {}
        texts.update(zip(self._path_names, values, strict=True))
        for parameter in self._headers:
            if (value := call.header(parameter.shown)) is not None:
                texts[parameter.name] = value
        try:
            return msgspec.convert(texts, self._inputs or _Nothing, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"the parameters are not allowed: {_plain(error)}") from None

    def _query(self, query: bytes) -> dict[str, Any]:
        """The texts of a query by name; a parameter that is a list takes each that has its name."""
        texts: dict[str, Any] = {}
        for name, text in _pairs(query):
            several = self._in_query.get(name)
            if several is None:
                allowed = ", ".join(sorted(self._in_query)) or "none"
                raise InvalidInput(f"query parameter {name!r} is not known; allowed: {allowed}")
            if several:
                texts.setdefault(name, []).append(text)
            elif name in texts:
                raise InvalidInput(f"query parameter {name!r} is there twice: it has one value")
            else:
                texts[name] = text
        return texts

    def _body(self, body: bytes) -> Any:
        if self.body_is_optional and not body:
            return None
        return body if self.decode is None else decoded(self.decode, body)


def decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    """A body; raises what is wrong with it."""
    try:
        must_be_utf8(body)
        return decode(body)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the body is not allowed: {_plain(error)}") from None
    except UNREADABLE as error:
        raise MalformedBody(f"the body is not JSON, or nested too deeply: {error}") from None


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """The parameters of an operation that has none."""


def _pairs(query: bytes) -> list[tuple[str, str]]:
    """Names and texts of a query, in order."""
    try:
        text = query.decode("ascii")
        if "%" not in text and "+" not in text and text.count("&") < QUERY_FIELDS_MAX:
            return [(name, value) for name, _, value in (part.partition("=") for part in text.split("&")) if name]
        return parse_qsl(text, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict")
    except ValueError as error:
        raise InvalidInput(f"the query of the address can't be read: {error}") from None


def _is_list(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return get_origin(kind) is list or any(get_origin(each) is list for each in get_args(kind))


def _plain(error: msgspec.ValidationError) -> str:
    """In the words of who sent it: `$.limit` is how the library calls it."""
    return str(error).replace("`$.", "`").replace("`$[", "`[").replace(" - at `$`", "")


# --- making operations

OPERATIONS: list[Operation] = []  # in the order of their definition, which is that of the docs


def operation(address: str, *, status: int = 200, partly: bool = False, changing_get: bool = False) -> Callable[[F], F]:
    """Serve a function at `METHOD /path/{parameter}`."""
    method, _, path = address.partition(" ")

    def made(function: F) -> F:
        OPERATIONS.append(operation_of(method, path, function, status, partly=partly, changing_get=changing_get))
        return function

    return made


def socket(path: str) -> Callable[[F], F]:
    """Serve a function as a WebSocket; its second parameter is the `Socket`."""

    def made(function: F) -> F:
        OPERATIONS.append(operation_of(SOCKET, path, function, 101))
        return function

    return made


def operation_of(
    method: str, path: str, function: Callable[..., Awaitable[Any]], status: int, *,
    partly: bool = False, changing_get: bool = False,
) -> Operation:  # fmt: skip
    hints = get_type_hints(function, include_extras=True)
    documented, example = _documented(function) if DOCSTRINGS else _undocumented(function, method, path)
    summary, _, description = documented.partition("\n")
    parameters = []
    signature = inspect.signature(function).parameters
    for name, parameter in list(signature.items())[1:]:
        if name not in ("body", "socket"):
            default = msgspec.NODEFAULT if parameter.default is inspect.Parameter.empty else parameter.default
            parameters.append(_parameter(name, hints[name], default, path))
    return Operation(
        method, path, function, status, summary.strip(), description.strip(), example, tuple(parameters),
        hints.get("body"), hints.get("return"), function.__module__.rpartition(".")[2], partly, changing_get,
        "body" in signature and signature["body"].default is None,
    )  # fmt: skip


def _parameter(name: str, kind: Any, default: Any, path: str) -> Parameter:
    if f"{{{name}}}" in path:
        return Parameter(name, name, "path", kind, default)
    header = next((each for each in get_args(kind) if isinstance(each, Header)), None)
    if header is not None:
        return Parameter(name, header.name, "header", kind, default)
    return Parameter(name, name, "query", kind, default)


def _undocumented(function: Callable[..., Any], method: str, path: str) -> tuple[str, Example]:
    """The same where there are no docstrings: addresses and types have to do."""
    return f"{function.__name__.replace('_', ' ').capitalize()}.", Example(method, path)


def _documented(function: Callable[..., Any]) -> tuple[str, Example]:
    """The docstring without its example, and the example."""
    text = inspect.getdoc(function) or ""
    told, _, last = text.rpartition("\n\n")
    method, _, rest = last.strip().partition(" ")
    target, _, body = " ".join(rest.split("\n")).strip().partition(" ")
    if not method.isupper() or not target.startswith("/"):
        raise TypeError(f"{function.__qualname__}: its docstring must end with an example, 'METHOD /path {{body}}'")
    return told, Example(method, target, msgspec.json.decode(body) if body.strip() else None)
