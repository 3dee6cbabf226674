"""By which names this door may be called.

A page whose own name is made to point here (DNS rebinding) is, to its browser, of the same site as this door: it may
ask everything and read all answers. What gives it away is the name in the header `Host`.

Rule 1: an address and localhost are never refused: nobody can make these point elsewhere. Nor is what has no Host: that
        is no browser.
Rule 2: a door on loopback, which those who sit at this machine alone can reach, has no other names than the one that is
        advertised and those of `http-hosts`.
Rule 3: a door that others can reach has any name, unless `http-hosts` lists them. With `*` every door has.
"""

from collections.abc import Collection
from ipaddress import ip_address
from typing import Final

from runnel.doors.http.problems import WrongHost

ANY: Final = "*"
LOCAL: Final = "localhost"
KNOWN_MAX: Final = 1_000  # spellings that are remembered: clients have few


class Hosts:
    """The names of one door."""

    def __init__(self, listed: Collection[str] = (), advertised: str = "") -> None:
        listed = {name for name in listed if name}
        self._names = {LOCAL, advertised.lower(), *listed}
        self._is_open = ANY in listed
        self._checks = bool(listed) and not self._is_open
        self._known: dict[bytes, bool] = {}

    def bound(self, address: str) -> None:
        """The door listens there."""
        self._checks = self._checks or (not self._is_open and ip_address(address).is_loopback)
        self._known.clear()

    def allows(self, host: bytes) -> bool:
        """Whether the value of a header Host is a name of this door."""
        allowed = self._known.get(host)
        if allowed is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            allowed = self._known[host] = not self._checks or self._is_own(name_of(host))
        return allowed

    def check(self, host: bytes) -> None:
        if not self.allows(host):
            raise WrongHost(f"this door is not known as {name_of(host)!r}: a page may have led a browser here")

    def _is_own(self, name: str) -> bool:
        return name in self._names or name.endswith(f".{LOCAL}") or _is_address(name)


def name_of(host: bytes) -> str:
    """Without its port."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
