"""Frames of the Kafka protocol to messages and back.

Rule 1: reading raises Malformed, or Unsupported for an API or version that the schema does not have, and nothing else.
Rule 2: records are never copied: read, they are slices of the frame; written, they are parts of their own.
Rule 3: a decoder or encoder is compiled when its (message, version) is first needed, and kept.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from runnel.model.errors import UnsupportedVersion
from runnel.wire.kafka.apis import API, Api
from runnel.wire.kafka.primitives import Buffer, Malformed, skip_tags, wrong_size

__all__ = [
    "Buffer",
    "Malformed",
    "RequestHeader",
    "Unsupported",
    "decode_request",
    "decode_response",
    "decode_versioned",
    "encode_request",
    "encode_response",
    "encode_versioned",
    "read_request_header",
    "source",
]

T = TypeVar("T")
V = TypeVar("V")

_READ_ERRORS = (struct.error, IndexError, UnicodeDecodeError)
_REQUEST_HEADER = struct.Struct(">hhih")
_SIZED_REQUEST_HEADER = struct.Struct(">ihhih")
_SIZED_RESPONSE_HEADER = struct.Struct(">ii")
_SIZED_FLEXIBLE_RESPONSE_HEADER = struct.Struct(">iix")
_CORRELATION_ID = struct.Struct(">i")
_VERSION = struct.Struct(">h")
_NO_VERSION = range(0)
_flexible_versions = {key: range(api.flexible_since, api.max_version + 1) for key, api in API.items()}


class Unsupported(UnsupportedVersion):
    """The schema has no such API, or not in this version."""

    def __init__(self, api_key: int, version: int) -> None:
        api = API.get(api_key)
        if api is None:
            reason = f"the Kafka protocol has no API with the key {api_key}"
        else:
            reason = f"{api.name} has the versions {api.min_version} to {api.max_version}, not {version}"
        super().__init__(reason)
        self.api_key = api_key
        self.version = version


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


# --- the server's direction
def read_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Read the header of a request, given without its 4-byte size; also where its body begins.

    An unknown API or version has a header too, so that it can be answered; its body is for no one to read.
    """
    try:
        api_key, version, correlation_id, size = _REQUEST_HEADER.unpack_from(frame)
        position = 10 if size == -1 else 10 + size
        if size < -1 or position > len(frame):
            wrong_size("client_id", size)
        client_id = None if size == -1 else frame[10:position].tobytes().decode()
        if version in _flexible_versions.get(api_key, _NO_VERSION):
            position = skip_tags(frame, position + 1, frame[position])
    except _READ_ERRORS as error:
        raise Malformed(f"the request header can't be read: {error}") from None
    return RequestHeader(api_key, version, correlation_id, client_id), position


def decode_request(api_key: int, version: int, frame: memoryview, position: int) -> Any:
    """Read the body of a request. What follows it in the frame is ignored, as Kafka does it.

    librdkafka 2.16 sends three bytes too many with Metadata v13.
    """
    return _decode(_request_decoders[api_key, version], frame, position, api_key, version)[0]


def encode_response(api_key: int, version: int, correlation_id: int, message: Any) -> list[Buffer]:
    """A whole response as parts to be sent one after the other, the 4-byte size first."""
    encode, head = _response_encoders[api_key, version]
    parts = _encode(encode, message, api_key, version)
    size = head.size - 4 + (len(parts[0]) if len(parts) == 1 else sum(map(len, parts)))
    parts[0] = head.pack(size, correlation_id) + parts[0]
    return parts


# --- the client's direction
def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Any
) -> list[Buffer]:
    """A whole request as parts to be sent one after the other, the 4-byte size first."""
    parts = _encode(_request_encoders[api_key, version], message, api_key, version)
    client = b"" if client_id is None else client_id.encode()  # never compact, even in flexible versions
    tags = b"\0" if version in _flexible_versions[api_key] else b""
    size = _REQUEST_HEADER.size + len(client) + len(tags) + sum(map(len, parts))
    client_size = -1 if client_id is None else len(client)
    head = _SIZED_REQUEST_HEADER.pack(size, api_key, version, correlation_id, client_size)
    parts[0] = b"".join((head, client, tags, parts[0]))
    return parts


def decode_response(api_key: int, version: int, frame: memoryview) -> tuple[int, Any]:
    """Read a response, given without its 4-byte size: its correlation id, and the message.

    A broker that does not know the version of an ApiVersions request answers in version 0, with error 35.
    """
    try:
        correlation_id: int = _CORRELATION_ID.unpack_from(frame)[0]
        position = skip_tags(frame, 5, frame[4]) if _flexible_header(api_key, version) else 4
    except _READ_ERRORS as error:
        raise Malformed(f"the response header can't be read: {error}") from None
    message, end = _decode(_response_decoders[api_key, version], frame, position, api_key, version)
    if end != len(frame):
        raise Malformed(f"{len(frame) - end} bytes follow the end of the answer to {API[api_key].name} v{version}")
    return correlation_id, message


# --- data inside of other messages
def encode_versioned(message: Any, version: int) -> bytes:
    """Data such as ConsumerProtocolSubscription as it stands in a `bytes` field: its version, then itself."""
    encode = _encoder(type(message).__name__, version)
    return _VERSION.pack(version) + b"".join(encode(message))


def decode_versioned(message_class: type[T], data: Buffer) -> tuple[int, T]:
    """Read data that begins with its version; a newer one is read as the newest known, which it only adds to."""
    from runnel.wire.kafka import compiler

    name, frame = message_class.__name__, memoryview(data)
    try:
        version: int = _VERSION.unpack_from(frame)[0]
        known = compiler.versions(name)
        if version < known[0]:
            raise Malformed(f"{name} has no version {version}")
        message, _ = compiler.decoder(name, min(version, known[-1]))(frame, 2)
    except _READ_ERRORS as error:
        raise Malformed(f"{name} can't be read: {error}") from None
    return version, message


def source(api_key: int, version: int, kind: str) -> str:
    """The Python that is compiled for a "request" or "response", reading and writing: to look at."""
    from runnel.wire.kafka import compiler

    return compiler.source(_message_name(api_key, version, kind.capitalize()), version)


# --- compiling on first use
def _decoder(name: str, version: int) -> Callable[..., Any]:
    from runnel.wire.kafka import compiler

    return compiler.decoder(name, version)


def _encoder(name: str, version: int) -> Callable[..., Any]:
    from runnel.wire.kafka import compiler

    return compiler.encoder(name, version)


def _message_name(api_key: int, version: int, suffix: str) -> str:
    api = API.get(api_key)
    if api is None or not api.min_version <= version <= api.max_version:
        raise Unsupported(api_key, version)
    return api.name + suffix


def _response_encoder(api_key: int, version: int) -> tuple[Callable[..., Any], struct.Struct]:
    """The function, and the header that goes before what it writes."""
    head = _SIZED_FLEXIBLE_RESPONSE_HEADER if _flexible_header(api_key, version) else _SIZED_RESPONSE_HEADER
    return _encoder(_message_name(api_key, version, "Response"), version), head


class _PerVersion(dict[tuple[int, int], V]):
    """What was made for an API key and version."""

    def __init__(self, make: Callable[[int, int], V]) -> None:
        self._make = make

    def __missing__(self, key: tuple[int, int]) -> V:
        made = self[key] = self._make(*key)
        return made


_request_decoders = _PerVersion(lambda key, version: _decoder(_message_name(key, version, "Request"), version))
_response_decoders = _PerVersion(lambda key, version: _decoder(_message_name(key, version, "Response"), version))
_request_encoders = _PerVersion(lambda key, version: _encoder(_message_name(key, version, "Request"), version))
_response_encoders = _PerVersion(_response_encoder)


def _decode(
    decode: Callable[..., tuple[Any, int]], frame: memoryview, position: int, api_key: int, version: int
) -> tuple[Any, int]:
    """The message, and where it ends."""
    try:
        return decode(frame, position)
    except _READ_ERRORS as error:
        raise Malformed(f"{API[api_key].name} v{version} can't be read: {error}") from None


def _encode(encode: Callable[..., list[Buffer]], message: Any, api_key: int, version: int) -> list[Buffer]:
    try:
        return encode(message)
    except Exception as error:
        error.add_note(f"while writing {API[api_key].name} v{version}")
        raise


def _flexible_header(api_key: int, version: int) -> bool:
    """Whether a response's header has tagged fields: never for ApiVersions, whose reader knows no version yet."""
    return api_key != Api.API_VERSIONS and version in _flexible_versions.get(api_key, _NO_VERSION)
