"""Requests that may be sent again: the header `Idempotency-Key`.

Rule 1: the answer to the first request of a key is the answer to all of them, on every broker, also after a crash. It
        is remembered for a day.
Rule 2: a request is its address and what its body says; another one under the same key is refused, unless the first
        one was refused itself, and left nothing.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from runnel.broker.requests import KEY_BYTES_MAX
from runnel.doors.http.call import Call
from runnel.doors.http.operation import Header
from runnel.model.calls import Outgoing, Placed

T = TypeVar("T")

_encode = msgspec.json.Encoder(order="deterministic").encode

IdempotencyKey: TypeAlias = Annotated[
    Annotated[str, Meta(min_length=1, max_length=KEY_BYTES_MAX)] | None,
    Meta(description="a request that is sent again under the same key gets the first one's answer"),
    Header("Idempotency-Key"),
]


async def send_once(call: Call, key: str, body: Any, topic: str, messages: Sequence[Outgoing]) -> list[Placed]:
    """Send messages under a key; raises if one of them could not be kept: the same request may be sent again then."""
    return await call.broker.sending_once.send(key, digest_of(call, body), topic, messages)


async def do_once(call: Call, key: str, kind: type[T], act: Callable[[], Awaitable[T]]) -> T:
    """The answer to the first request of a key; doing it again must change nothing."""

    async def packed(_: object) -> bytes:
        return msgspec.msgpack.encode(await act())

    return msgspec.msgpack.decode(await call.broker.requests.once(key, digest_of(call, None), (), packed), type=kind)


def digest_of(call: Call, body: Any) -> bytes:
    """What tells one request from another."""
    said = hashlib.sha256(call.scope["raw_path"] + b"?" + call.scope["query_string"] + b"\n")
    said.update(_encode(body))
    return said.digest()
