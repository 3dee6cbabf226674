"""POSTing to other people's servers over HTTP/1.1, with or without TLS.

Rule 1: http and https alone. Redirects are not followed: they are an answer like any other.
Rule 2: the address that was checked is the one that is connected to: what a name means may change in between.
        Addresses of this machine, of its network and of nobody are refused, unless they are allowed.
Rule 3: every exchange has one deadline; of an answer no more is read than is needed.
Rule 4: a connection is used again if its answer ended in order. If it turns out to be dead before a byte of the answer
        came, the request goes over a new one, once.
"""

import asyncio
import ipaddress
import ssl
from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from runnel.model.errors import ClientError, RetriableError
from runnel.model.limits import KIB
from runnel.model.numbers import whole_number

HEAD_BYTES_MAX: Final = 32 * KIB
ANSWER_BYTES_MAX: Final = 64 * KIB  # of a body that is read to use its connection again
IDLE_MAX: Final = 16  # connections to one server that are kept
IDLE_S: Final = 30.0
PORTS: Final = {"http": 80, "https": 443}
# All that is public in IPv6 lies in one network. So an address that stands for one of IPv4 (mapped, compatible, NAT64)
# or for a place of this network (link-local, site-local, unique local) is not public by where it lies.
GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
NOT_PUBLIC: Final = (
    ipaddress.IPv6Network("2001::/23"),  # protocols of the IETF: Teredo, ORCHID, benchmarks
    ipaddress.IPv6Network("2001:db8::/32"),  # documentation
    ipaddress.IPv6Network("2002::/16"),  # 6to4: stands for an address of IPv4
    ipaddress.IPv6Network("3fff::/20"),  # documentation
)


class BadAddress(ClientError):
    """It can't be posted to this address."""


class NoAnswer(RetriableError):
    """The server could not be reached, or did not answer in time."""


class Place(NamedTuple):
    """Where a URL points to."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]  # by names in small letters


class _Idle(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    since: float


def parse_url(url: str) -> Place:
    """The parts of an http or https URL; BadAddress if it is none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise BadAddress(f"{url[:200]!r} is not a URL") from None
    if parts.scheme not in PORTS or not host:
        raise BadAddress(f"{url[:200]!r} can't be posted to: use http://HOST or https://HOST")
    if parts.username is not None or parts.password is not None:
        raise BadAddress("a URL must not carry a password")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not target.isascii() or any(char <= " " for char in target) or any(char <= " " for char in host):
        raise BadAddress(f"{url[:200]!r} has characters that a URL has to percent-encode")
    return Place(parts.scheme, host, port or PORTS[parts.scheme], target)


def must_be_public(place: Place) -> None:
    """Refuse at once what its own text shows to be no public address; what a name means is looked up for each POST."""
    if place.host == "localhost" or (_is_address(place.host) and not is_public(place.host)):
        raise _private(place.host)


class Poster:
    """Posts, and keeps a few connections."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._idle: defaultdict[tuple[str, str, int], list[_Idle]] = defaultdict(list)
        self._tls: ssl.SSLContext | None = None

    def close(self) -> None:
        for some in self._idle.values():
            for one in some:
                one.writer.close()
        self._idle.clear()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Answer:
        """The server's answer; NoAnswer if there is none in time, BadAddress if it may not be asked."""
        place = parse_url(url)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._post(place, _request(place, headers, body))
        except TimeoutError:
            raise NoAnswer(f"{place.authority} did not answer within {timeout_s:g} s") from None
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise NoAnswer(f"{place.authority} could not be asked: {error or type(error).__name__}") from None

    async def _post(self, place: Place, request: bytes) -> Answer:
        idle = self._take(place)
        if idle is not None:
            try:
                return await self._exchange(place, idle.reader, idle.writer, request)
            except (OSError, asyncio.IncompleteReadError) as error:
                if isinstance(error, asyncio.IncompleteReadError) and error.partial:
                    raise
        return await self._exchange(place, *await self._connect(place), request)

    async def _connect(self, place: Place) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = await self._resolve(place)
        if place.scheme == "http":
            return await asyncio.open_connection(address, place.port, limit=HEAD_BYTES_MAX)
        self._tls = self._tls or ssl.create_default_context()
        return await asyncio.open_connection(
            address, place.port, limit=HEAD_BYTES_MAX, ssl=self._tls, server_hostname=place.host
        )

    async def _resolve(self, place: Place) -> str:
        """An address of the host that may be connected to (rule 2)."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(place.host, place.port, type=1)  # SOCK_STREAM
        addresses = [str(entry[4][0]) for entry in found]
        allowed = [one for one in addresses if self._allow_private or is_public(one)]
        if not allowed:
            raise _private(f"{place.host} ({', '.join(addresses) or 'nowhere'})")
        return allowed[0]

    async def _exchange(
        self, place: Place, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
    ) -> Answer:
        reusable = False
        try:
            writer.write(request)
            await writer.drain()
            while (answer := _parsed(await reader.readuntil(b"\r\n\r\n"))).status // 100 == 1:
                pass
            reusable = await _read_body(answer, reader)
            return answer
        finally:
            if reusable:
                self._keep(place, reader, writer)
            else:
                writer.close()

    def _take(self, place: Place) -> _Idle | None:
        some, now = self._idle[place[:3]], asyncio.get_running_loop().time()
        while some:
            one = some.pop()
            if now - one.since < IDLE_S and not one.reader.at_eof() and not one.writer.is_closing():
                return one
            one.writer.close()
        return None

    def _keep(self, place: Place, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        some = self._idle[place[:3]]
        if len(some) >= IDLE_MAX:
            writer.close()
        else:
            some.append(_Idle(reader, writer, asyncio.get_running_loop().time()))


def is_public(address: str) -> bool:
    """Whether an address is somebody's in the open network, and stands for no other address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not ip.is_multicast
    return ip in GLOBAL_UNICAST and not any(ip in network for network in NOT_PUBLIC)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _private(host: str) -> BadAddress:
    return BadAddress(
        f"{host} is not public: webhooks go to public addresses alone,"
        " unless the broker's setting webhook-private is true"
    )


def _request(place: Place, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST {place.target} HTTP/1.1", f"Host: {place.authority}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def _parsed(head: bytes) -> Answer:
    first, *rest = head.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    if not version.startswith("HTTP/1.") or not status[:3].isdigit():
        raise ValueError("its answer is not HTTP/1.1")
    headers = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return Answer(int(status[:3]), headers)


async def _read_body(answer: Answer, reader: asyncio.StreamReader) -> bool:
    """Read what belongs to the answer, if that is little; whether the connection can be used again."""
    if "close" in answer.headers.get("connection", "").lower() or "transfer-encoding" in answer.headers:
        return False
    size = whole_number(answer.headers.get("content-length", "0" if answer.status == 204 else ""))
    if size is None or not 0 <= size <= ANSWER_BYTES_MAX:
        return False
    await reader.readexactly(size)
    return True
