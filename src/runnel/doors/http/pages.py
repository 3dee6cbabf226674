"""Which requests of web pages are served: the door's defence against pages of other sites.

A browser sends a request of any page to any address, this machine included. A page can read no answer of another site,
but what a request does is done. Some headers tell where a request comes from, and no page can set them: `Origin`,
`Sec-Fetch-Site`, `Referer`, and every header that makes a browser ask for leave first (a CORS preflight), as
`Runnel-Client` does.

Rule 1: a request with an Origin is served if the origin is this door's own (it equals `Host`), or is listed in
        `http-origins`.
Rule 2: a request that its browser marks as another site's (`Sec-Fetch-Site` is neither `same-origin` nor `none`) is
        served only with a listed Origin.
Rule 3: a GET that changes something (it leases messages, or joins a group) must show that no page of another site sent
        it: by `Sec-Fetch-Site: same-origin`, by an Origin that is served, by a Referer of this door, or by
        `Runnel-Client`. Browsers send no Origin with a plain GET, no `Sec-Fetch-Site` to plain HTTP beyond their own
        machine, and neither of the two if they are old: without any of the four, such a GET is refused. So it is with
        `Sec-Fetch-Site: none`: the address that was typed may have redirected here.
Rule 4: pages of listed origins may read answers (CORS), and set the headers that operations take.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from runnel.doors.http.problems import ClientHeaderRequired, CrossOrigin

CLIENT: Final = "Runnel-Client"
SAME_ORIGIN: Final = b"same-origin"
NO_SITE: Final = b"none"  # no page sent it: the address was typed
PREFLIGHT_S: Final = 600  # a browser asks for leave again after so long
ASKED_HEADERS: Final = b"content-type, idempotency-key, last-event-id, runnel-client"
SHOWN_HEADERS: Final = b"allow, retry-after"


class Page(NamedTuple):
    """The headers of a request that tell of the page that sent it; b"": there is no such header."""

    host: bytes
    origin: bytes
    site: bytes
    referer: bytes
    client: bytes


class Pages:
    """The pages that may call one door."""

    def __init__(self, origins: Collection[str] = ()) -> None:
        self._origins = frozenset(origin.encode() for origin in origins if origin)

    def lists(self, page: Page) -> bool:
        """Whether a page of a listed origin sent it."""
        return page.origin in self._origins

    def check(self, page: Page) -> None:
        """Raise for a page of another site that is not listed (rules 1 and 2)."""
        if self.lists(page):
            return
        if page.origin and _authority(page.origin) != page.host:
            raise CrossOrigin(f"a page of {_shown(page.origin)} may not call {_shown(page.host)}")
        if page.site not in (b"", SAME_ORIGIN, NO_SITE):
            raise CrossOrigin(f"a page of another site may not call {_shown(page.host)}")

    def check_change(self, page: Page) -> None:
        """Raise for a GET that changes something, if a page of another site may have sent it (rule 3)."""
        if page.origin or page.site == SAME_ORIGIN or page.client:
            return  # the origin has been checked before
        if not page.referer or _authority(page.referer) != page.host:
            raise ClientHeaderRequired(
                f"this GET changes something, and any web page may have sent it: add the header {CLIENT}"
            )

    def answer_headers(self, page: Page) -> list[tuple[bytes, bytes]]:
        """The headers with which a page of a listed origin may read an answer (rule 4)."""
        if not self.lists(page):
            return []
        return [
            (b"access-control-allow-origin", page.origin), (b"access-control-expose-headers", SHOWN_HEADERS),
            (b"vary", b"Origin"),
        ]  # fmt: skip

    def preflight_headers(self, methods: Iterable[str]) -> list[tuple[bytes, bytes]]:
        """The answer to a browser that asks for leave."""
        return [
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-allow-headers", ASKED_HEADERS),
            (b"access-control-max-age", b"%d" % PREFLIGHT_S),
        ]


def page_of(headers: Mapping[bytes, bytes]) -> Page:
    found = headers.get
    return Page(
        found(b"host", b""), found(b"origin", b""), found(b"sec-fetch-site", b""), found(b"referer", b""),
        found(b"runnel-client", b""),
    )  # fmt: skip


def _authority(url: bytes) -> bytes:
    """HOST or HOST:PORT of a URL."""
    return url.partition(b"://")[2].partition(b"/")[0]


def _shown(text: bytes) -> str:
    return text[:100].decode("latin-1")
