"""Pages of other sites: whatever a browser sends for them, nothing is done, and no GET changes anything unseen."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from runnel.broker.config import BrokerConfig, parse_origins
from runnel.doors.http.operation import Operation
from runnel.doors.http.pages import Page, Pages
from runnel.doors.http.problems import ClientHeaderRequired, CrossOrigin
from runnel.doors.http.resources import operations
from runnel.testing.process import BrokerProcess

from .api import LIMIT_S, Api

HOST = b"queue.example:8080"
OWN = b"http://queue.example:8080"
LISTED = b"https://shop.example"
MESSAGE = {"from_user": "a", "to_user": "b", "message": "hello"}


def page(origin: bytes = b"", site: bytes = b"", referer: bytes = b"", client: bytes = b"") -> Page:
    return Page(HOST, origin, site, referer, client)


PAGES = Pages([LISTED.decode()])


@pytest.mark.parametrize(
    "one",
    [
        page(), page(OWN), page(OWN, b"same-origin"), page(site=b"same-origin"), page(site=b"none"), page(LISTED),
        page(LISTED, b"cross-site"), page(referer=b"http://evil.example/"),
    ],
)  # fmt: skip
def test_own_pages_listed_pages_and_those_who_are_no_page_are_served(one: Page) -> None:
    PAGES.check(one)


@pytest.mark.parametrize(
    "one",
    [
        page(b"http://evil.example"), page(b"null"), page(site=b"cross-site"), page(site=b"same-site"),
        page(site=b"something-new"), page(OWN, b"cross-site"), page(OWN, b"same-site"), page(LISTED + b".evil.example"),
        page(b"http://queue.example"), page(b"queue.example:8080"), page(client=b"1", site=b"cross-site"),
    ],
)  # fmt: skip
def test_pages_of_other_sites_are_not(one: Page) -> None:
    with pytest.raises(CrossOrigin):
        PAGES.check(one)


@pytest.mark.parametrize(
    "one",
    [
        page(client=b"curl"), page(OWN), page(LISTED, b"cross-site"), page(site=b"same-origin"),
        page(referer=OWN + b"/page.html"), page(referer=OWN),
    ],
)  # fmt: skip
def test_a_get_changes_something_for_those_who_show_that_they_are_no_other_sites_page(one: Page) -> None:
    PAGES.check(one)
    PAGES.check_change(one)


@pytest.mark.parametrize(
    "one",
    [page(), page(site=b"none"), page(referer=b"http://evil.example/"), page(referer=OWN + b".evil.example/")],
    ids=["an old browser", "a typed address that redirects", "another site's", "a name that begins alike"],
)
def test_and_for_no_one_else(one: Page) -> None:
    PAGES.check(one)
    with pytest.raises(ClientHeaderRequired):
        PAGES.check_change(one)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", ""), ("https://Shop.example", "https://shop.example"), ("http://a:80, https://b:443", "http://a,https://b"),
        ("http://a:8080,http://[::1]:3000", "http://a:8080,http://[::1]:3000"),
    ],
)  # fmt: skip
def test_origins_are_listed_as_browsers_send_them(text: str, meant: str) -> None:
    assert parse_origins(text) == meant


@pytest.mark.parametrize("text", ["*", "null", "shop.example", "https://shop.example/", "ftp://a", "http://a b"])
def test_anything_else_is_no_origin(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_origins(text)
    assert BrokerConfig().http_origins == ""


# --- a real broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    environment = {"RUNNEL_HTTP_ORIGINS": LISTED.decode()}
    with BrokerProcess(tmp_path_factory.mktemp("pages") / "data", environment=environment) as process:
        yield process


def first_line(api: Api, target: str, **headers: str) -> bytes:
    """Of a stream, which is closed then."""
    connection = http.client.HTTPConnection(api.address, timeout=LIMIT_S)
    try:
        connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return answer.readline()
    finally:
        connection.close()


def state_of(api: Api) -> Any:
    """All that a GET might change."""
    paths = ("/v1/topics?internal=true", "/v1/groups", "/v1/queues", "/v1/webhooks", "/v1/schedule/count")
    return [api.ok("GET", path) for path in paths]


def gets() -> list[Operation]:
    return [each for each in operations() if each.method == "GET" and not each.changing_get]


def ask_all_gets(api: Api) -> None:
    for each in gets():
        target = each.example.target
        if "/events" in target and api.ask("HEAD", target).status == 200:
            assert first_line(api, target) == b"event: open\n"
        else:
            assert api.get(target).status < 500, target


def test_no_get_changes_anything_but_those_that_are_marked(api: Api) -> None:
    before = state_of(api)
    ask_all_gets(api)
    assert state_of(api) == before, "on a broker without anything"
    assert {each.path for each in operations() if each.changing_get} == {
        "/v1/groups/{group}/events", "/v1/queues/{queue}/events",
    }  # fmt: skip
    api.ok("POST", "/send", MESSAGE)
    api.ok("POST", "/v1/topics", {"name": "orders", "partitions": 2})
    api.ok("POST", "/v1/queues", {"name": "emails"})
    api.ok("POST", "/v1/queues/emails/messages", {"value": 1})
    api.ok("POST", "/v1/groups/billing/seek", {"topic": "orders", "to": "start"})
    queue = api.ok("GET", "/v1/queues/emails")  # its keeper begins
    before = state_of(api)
    ask_all_gets(api)
    assert (state_of(api), api.ok("GET", "/v1/queues/emails")) == (before, queue)


def test_a_page_leases_and_joins_nothing(api: Api) -> None:
    """As `<img src>` sends it: by a browser of today, by an old one, and by one whose user's address led here."""
    api.ok("POST", "/v1/queues", {"name": "img"})
    api.ok("POST", "/v1/queues/img/messages", {"value": 1})
    for path in ("/v1/queues/img/events", "/v1/groups/img-group/events?topic=img"):
        for site in ("cross-site", "same-site"):
            refused = api.get(path, **{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"})
            assert (refused.status, refused.code) == (403, "cross-origin")
            assert api.get(path, **{"Sec-Fetch-Site": site, "Accept": "text/event-stream"}).status == 403
        assert api.get(path).code == "client-header-required"
        assert api.ask("HEAD", path).status == 403
        assert api.get(path, **{"Sec-Fetch-Site": "none"}).code == "client-header-required"
    assert api.ok("GET", "/v1/queues/img")["leased"] == 0
    assert "img-group" not in {each["group"] for each in api.ok("GET", "/v1/groups")["groups"]}


def test_honest_pages_and_programs_lease_and_join(api: Api) -> None:
    api.ok("POST", "/v1/queues", {"name": "honest"})
    own = f"http://{api.address}"
    for headers in (
        {"Sec-Fetch-Site": "same-origin"}, {"Referer": f"{own}/page.html"}, {"Runnel-Client": "curl"},
        {"Origin": LISTED.decode(), "Sec-Fetch-Site": "cross-site"},
    ):  # fmt: skip
        for path in ("/v1/queues/honest/events", "/v1/groups/honest-group/events?topic=honest"):
            assert first_line(api, path, **headers) == b"event: open\n"


def test_the_missions_calls_refuse_other_sites_pages_also_where_they_are_hot(api: Api) -> None:
    message = {**MESSAGE, "to_user": "hot"}
    api.ok("POST", "/send", message)
    for _ in range(3):  # also when the same headers have come before
        for site in ("cross-site", "same-site"):
            assert api.post("/send", message, **{"Sec-Fetch-Site": site}).code == "cross-origin"
            assert api.get("/receive?user_id=hot", **{"Sec-Fetch-Site": site}).code == "cross-origin"
        for site in ("same-origin", "none"):
            assert len(api.get("/receive?user_id=hot", **{"Sec-Fetch-Site": site}).json["messages"]) == 1
        assert len(api.ok("GET", "/receive?user_id=hot")["messages"]) == 1


def test_a_listed_page_may_read_what_it_gets_and_asks_for_leave(api: Api) -> None:
    origin = {"Origin": LISTED.decode(), "Sec-Fetch-Site": "cross-site"}
    for answer in (
        api.get("/v1/topics", **origin), api.post("/send", MESSAGE, **origin), api.get("/v1/topics/nowhere", **origin),
    ):  # fmt: skip
        assert answer.headers["access-control-allow-origin"] == LISTED.decode()
        assert answer.headers["vary"] == "Origin"
    asked = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    leave = api.ask("OPTIONS", "/v1/topics", headers=asked)
    assert (leave.status, leave.headers["access-control-allow-methods"]) == (204, "GET, POST, HEAD")
    assert "content-type" in leave.headers["access-control-allow-headers"]
    assert api.ask("OPTIONS", "/v1/topics", headers={**asked, "Origin": "http://evil.example"}).status == 403
    assert "access-control-allow-origin" not in api.get("/v1/topics").headers


def test_a_websocket_of_another_sites_page_is_refused(api: Api) -> None:
    api.ok("POST", "/v1/queues", {"name": "socket"})
    url = f"ws://{api.address}/v1/queues/socket/socket"
    for origin, site in (("http://evil.example", "cross-site"), ("null", "cross-site"), (None, "cross-site")):
        headers = {"Sec-Fetch-Site": site}
        with pytest.raises(InvalidStatus) as refused, connect(url, origin=origin, additional_headers=headers):  # type: ignore[arg-type]
            pass
        assert refused.value.response.status_code == 403
    for origin in (f"http://{api.address}", LISTED.decode(), None):
        with connect(url, origin=origin) as socket:  # type: ignore[arg-type]
            assert json.loads(socket.recv(LIMIT_S))["type"] == "open"


def test_receiving_makes_nothing_and_waits_for_the_first_message_of_all(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with BrokerProcess(tmp_path / "data") as process, ThreadPoolExecutor(1) as threads:
        api = Api(process.http)
        assert api.ok("GET", "/receive?user_id=b") == {"messages": []}
        assert api.get("/receive?user_id=b&last_message_id=" + "0" * 28).status == 400
        assert api.ok("GET", "/v1/topics")["topics"] == []
        waiting = threads.submit(api.ok, "GET", "/receive?user_id=b&wait_ms=60000")
        api.ok("POST", "/send", MESSAGE)
        assert [each["message"] for each in waiting.result()["messages"]] == ["hello"]
