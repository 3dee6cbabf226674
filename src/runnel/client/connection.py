"""One TCP connection to one broker: frames, correlation, negotiated versions.

Rule 1: answers are matched by correlation id; a connection whose answer is overdue is closed, never reused, and what
        the system has not delivered on it yet is withdrawn.
Rule 2: a frame's memory belongs to whoever got the answer; it is not used again.
Rule 3: every wait has a deadline.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

from runnel.client.errors import BrokerUnreachable, NotKafka
from runnel.model.errors import RequestTimedOut, UnsupportedVersion
from runnel.model.limits import FRAME_BYTES_MAX, KIB
from runnel.model.seams import Buffer
from runnel.wire.kafka import codec
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import API, Api
from runnel.wire.kafka.error_codes import ErrorCode

R = TypeVar("R")

SCRATCH_BYTES = 64 * KIB  # one read of the socket; a larger frame gets memory of its own
WRITE_BUFFER_BYTES = 1024 * KIB  # unsent bytes at which `ask` begins to wait
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: a socket that is closed forgets what it has not delivered
CLIENT_NAME = "runnel"


class VersionRange(NamedTuple):
    low: int
    high: int


class Connection(asyncio.BufferedProtocol):
    """Made by `connect`; ask it until it is closed."""

    def __init__(self, address: str, client_id: str | None) -> None:
        self.address = address
        self.client_id = client_id
        self.versions: dict[int, VersionRange] = {}
        self.features: dict[str, int] = {}  # what the whole cluster has switched on, and at which level
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, asyncio.Future[memoryview]] = {}
        self._correlation_id = 0
        self._reason: Exception | None = None
        self._writable: asyncio.Future[None] | None = None
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._scratch_filled = 0
        self._frame: memoryview | None = None
        self._frame_filled = 0

    # --- asking
    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def version_of(self, api: Api, *, version_max: int | None = None) -> int:
        """The newest version that both sides speak."""
        offered = self.versions.get(api)
        known = API[api]
        high = known.max_version if version_max is None else min(known.max_version, version_max)
        if offered is None or min(offered.high, high) < max(offered.low, known.min_version):
            theirs = "does not offer it" if offered is None else f"offers versions {offered.low} to {offered.high}"
            raise UnsupportedVersion(
                f"broker {self.address} {theirs}, but {api.name} is needed "
                f"in a version from {known.min_version} to {high}: use another version of the broker"
            )
        return min(offered.high, high)

    async def ask(self, api: Api, request: Any, reply: type[R], *, timeout_ms: int, version: int | None = None) -> R:
        """Send a request and return the answer; `reply` is its class."""
        version = self.version_of(api) if version is None else version
        await self.room(timeout_ms)
        return await self.begin(api, request, reply, version=version).finish(timeout_ms)

    def begin(self, api: Api, request: Any, reply: type[R], *, version: int) -> "Asked[R]":
        """Send a request now: those who begin one after the other are answered in that order."""
        correlation_id = self._next_id()
        self._write(codec.encode_request(api, version, correlation_id, self.client_id, request))
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        self._pending[correlation_id] = answer
        return Asked(self, api, version, reply, answer)

    def tell(self, api: Api, request: Any, *, version: int) -> None:
        """Send a request that has no answer (Produce with acks=0)."""
        self._write(codec.encode_request(api, version, self._next_id(), self.client_id, request))

    async def negotiate(self, timeout_ms: int) -> None:
        """Learn which versions the broker speaks. One that does not know our newest question is asked in version 0."""
        request = m.ApiVersionsRequest(client_software_name=CLIENT_NAME, client_software_version="1")
        version = API[Api.API_VERSIONS].max_version
        asked = self.begin(Api.API_VERSIONS, request, m.ApiVersionsResponse, version=version)
        frame = await asked.frame(timeout_ms)
        if int.from_bytes(frame[4:6], "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
            asked = self.begin(Api.API_VERSIONS, request, m.ApiVersionsResponse, version=version)
            frame = await asked.frame(timeout_ms)
        answer = asked.decoded(frame)
        self.versions = {k.api_key: VersionRange(k.min_version, k.max_version) for k in answer.api_keys}
        self.features = {f.name: f.max_version_level for f in answer.finalized_features}

    def _next_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def not_kafka(self, why: str) -> NotKafka:
        return NotKafka(
            f"{self.address} does not speak the Kafka protocol: {why}; check host and port of the Kafka listener"
        )

    # --- writing
    def _write(self, parts: Sequence[Buffer]) -> None:
        if self._transport is None or self._transport.is_closing():
            raise self._reason or BrokerUnreachable(f"the connection to broker {self.address} is closed; connect again")
        self._transport.writelines(parts)

    async def room(self, timeout_ms: int) -> None:
        """Wait while the broker reads more slowly than we write."""
        while self._writable is not None:
            done, _ = await asyncio.wait([self._writable], timeout=timeout_ms / 1000)
            if not done:
                raise RequestTimedOut(
                    f"broker {self.address} took no bytes for {timeout_ms} ms: see whether it is overloaded or stopped"
                )

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    # --- reading
    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return self._scratch[self._scratch_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is None:
            self._scratch_filled += nbytes
            self._split()
            return
        self._frame_filled += nbytes
        if self._frame_filled == len(self._frame):
            frame, self._frame = self._frame, None
            self._answer(frame)

    def _split(self) -> None:
        """Hand out the frames in the scratch buffer; give memory of its own to one that is not complete."""
        scratch, filled, position = self._scratch, self._scratch_filled, 0
        self._scratch_filled = 0
        while filled - position >= 4:
            size = int.from_bytes(scratch[position : position + 4], "big", signed=True)
            if not 4 <= size <= FRAME_BYTES_MAX:
                self.abort(self.not_kafka(f"it announced an answer of {size} bytes"))
                return
            frame = memoryview(bytearray(size))
            have = min(size, filled - position - 4)
            frame[:have] = scratch[position + 4 : position + 4 + have]
            position += 4 + have
            if have < size:
                self._frame, self._frame_filled = frame, have
                return
            self._answer(frame)
        rest = bytes(scratch[position:filled])
        scratch[: len(rest)] = rest
        self._scratch_filled = len(rest)

    def _answer(self, frame: memoryview) -> None:
        waiting = self._pending.pop(int.from_bytes(frame[:4], "big", signed=True), None)
        if waiting is None:
            self.abort(self.not_kafka("it answered a question that was not asked"))
        elif not waiting.done():
            waiting.set_result(frame)

    # --- the life of the connection
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not instances of it
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        why = f": {exc}" if exc else ""
        self._end(BrokerUnreachable(f"broker {self.address} closed the connection{why}; see whether it still runs"))

    def abort(self, reason: Exception) -> None:
        """Close at once; whoever waits gets the reason.

        The system would go on resending what was not delivered, for minutes, also after the close: a commit of offsets
        that was given up and repeated would arrive once more, behind later ones.
        """
        self._end(reason)
        if self._transport is None:
            return
        line: socket.socket | None = None if self.closed else self._transport.get_extra_info("socket")
        if line is not None:  # in a simulation there is none
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self._transport.abort()

    def close(self) -> None:
        """Close after what was written has left."""
        self._end(BrokerUnreachable(f"the connection to broker {self.address} was closed here"))
        if self._transport is not None:
            self._transport.close()

    def _end(self, reason: Exception) -> None:
        self._reason = self._reason or reason
        self.resume_writing()
        pending, self._pending = self._pending, {}
        for waiting in pending.values():
            if not waiting.done():
                waiting.set_exception(self._reason)


class Asked(Generic[R]):
    """A request that was sent and not answered yet."""

    def __init__(
        self, connection: Connection, api: Api, version: int, reply: type[R], answer: asyncio.Future[memoryview]
    ) -> None:
        self._connection = connection
        self._api = api
        self._version = version
        self._reply = reply
        self._answer = answer

    async def finish(self, timeout_ms: int) -> R:
        """The answer, which must come within this time."""
        return self.decoded(await self.frame(timeout_ms))

    async def frame(self, timeout_ms: int) -> memoryview:
        """The bytes of the answer. (A timer, not `asyncio.timeout`: a broker may ask before it has a task.)"""
        overdue = self._answer.get_loop().call_later(timeout_ms / 1000, self._give_up, timeout_ms)
        try:
            return await self._answer
        finally:
            overdue.cancel()

    def _give_up(self, timeout_ms: int) -> None:
        address = self._connection.address
        error = RequestTimedOut(
            f"broker {address} did not answer {self._api.name} within {timeout_ms} ms: "
            f"see whether it is overloaded or stopped, or give it more time"
        )
        if not self._answer.done():
            self._answer.set_exception(error)
        self._connection.abort(BrokerUnreachable(f"the connection to broker {address} was given up: {error}"))

    def decoded(self, frame: memoryview) -> R:
        try:
            _, answer = codec.decode_response(self._api, self._version, frame)
        except codec.Malformed as malformed:
            error = self._connection.not_kafka(f"its answer to {self._api.name} can't be read ({malformed})")
            self._connection.abort(error)
            raise error from malformed
        assert isinstance(answer, self._reply)
        return answer


async def connect(host: str, port: int, *, client_id: str | None = CLIENT_NAME, timeout_ms: int) -> Connection:
    """A connection that knows the broker's versions."""
    address = f"{host}:{port}"
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, connection = await loop.create_connection(lambda: Connection(address, client_id), host, port)
    except TimeoutError:
        raise BrokerUnreachable(
            f"broker {address} did not accept a connection within {timeout_ms} ms: see whether it runs and is reachable"
        ) from None
    except OSError as error:
        raise BrokerUnreachable(
            f"broker {address} can't be reached ({_reason_of(error)}): see whether it runs and the address is right"
        ) from None
    try:
        await connection.negotiate(timeout_ms)
    except BaseException:
        connection.close()
        raise
    return connection


def _reason_of(error: OSError) -> str:
    """The system's word for it; a name that is refused on two addresses has no number, only words."""
    if isinstance(error, socket.gaierror):
        return f"{error.strerror}".lower()
    return os.strerror(error.errno).lower() if error.errno else "connection refused"
