"""The names by which this door may be called: its defence against DNS rebinding.

A page whose own name was made to point here is, to its browser, of the same site as this door: it may ask everything
and read all answers. The header `Host` gives the page away: it carries the page's name.

Rule 1: addresses and localhost are names of every door: nobody can make these point elsewhere.
Rule 2: any other name is a name of this door only if clients are told it (`advertise`) or if `http-hosts` lists it,
        wherever the door listens; with `*` every name is.
Rule 3: a request has exactly one Host, and it is HOST or HOST:PORT (RFC 9112, section 3.2), whatever its version.
"""

import re
from collections.abc import Collection
from ipaddress import ip_address
from typing import Final

from runnel.doors.http.problems import MalformedHost, WrongHost

ANY: Final = "*"
LOCAL: Final = "localhost"
KNOWN_MAX: Final = 1_000  # spellings that are remembered: clients have few
_HOST: Final = re.compile(rb"(?:\[(?P<bracketed>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:/?#@,\s]+))(?::[0-9]{1,5})?")


class Hosts:
    """The names of one door."""

    def __init__(self, listed: Collection[str] = ()) -> None:
        self._names = {LOCAL, *listed} - {""}
        self._is_open = ANY in listed
        self._known: dict[bytes, bool] = {}

    def advertise(self, name: str) -> None:
        """Clients are told this name."""
        self._names.add(name.lower())
        self._known.clear()

    def allows(self, host: bytes) -> bool:
        """Whether the value of a header Host is a name of this door."""
        allowed = self._known.get(host)
        if allowed is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            allowed = self._known[host] = self._is_own(host)
        return allowed

    def check(self, hosts: Collection[bytes]) -> None:
        """Raise unless the headers Host of a request are one name of this door."""
        if len(hosts) != 1:
            raise MalformedHost(f"the request has {len(hosts)} headers Host, not one")
        [host] = hosts
        if self.allows(host):
            return
        name = name_of(host)
        if name is None:
            raise MalformedHost(f"Host: {host[:100].decode('latin-1')!r} is not HOST or HOST:PORT")
        raise WrongHost(f"{name[:100]!r} is not a name of this door: http-hosts does not list it")

    def _is_own(self, host: bytes) -> bool:
        name = name_of(host)
        if name is None:
            return False
        return self._is_open or name in self._names or name.endswith(f".{LOCAL}") or _is_address(name)


def name_of(host: bytes) -> str | None:
    """The name or address in a header Host, without its port; None if the header is malformed."""
    match = _HOST.fullmatch(host)
    if match is None:
        return None
    if (bracketed := match["bracketed"]) is not None:
        address = bracketed.decode()
        return address if ":" in address and _is_address(address) else None
    return match["name"].decode("latin-1").lower().removesuffix(".") or None


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
