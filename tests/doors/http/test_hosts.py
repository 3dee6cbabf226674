"""By which names the door may be called: a page whose name was made to point here gets nothing."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from runnel.doors.http.hosts import KNOWN_MAX, Hosts
from runnel.doors.http.problems import MalformedHost, WrongHost
from runnel.testing.process import BrokerProcess

from .api import LIMIT_S, Api

EVIL = "evil.example:8080"
MESSAGE = {"from_user": "a", "to_user": "b", "message": "hello"}


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8080", "127.0.0.1", "localhost:8080", "LOCALHOST", "localhost.", "app.localhost:80", "[::1]:8080",
     "192.168.1.7:8080", "10.0.0.1", "[::1]", "[FD00::1]:1"],
)  # fmt: skip
def test_addresses_and_localhost_are_never_refused(host: str) -> None:
    assert Hosts().allows(host.encode())
    assert Hosts(["queue.example"]).allows(host.encode())


@pytest.mark.parametrize(
    "host",
    ["evil.example:8080", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost",
     "broker-1:8080"],
)  # fmt: skip
def test_no_other_name_is_the_doors(host: str) -> None:
    with pytest.raises(WrongHost):
        Hosts().check([host.encode()])


@pytest.mark.parametrize(
    "host",
    ["", ".", ":8080", "[::1]evil", "[::1]evil:80", "[::1].evil.example", "[::1", "::1", "[evil]", "[127.0.0.1]",
     "[1:2:3:4:5:6:7:8:9]", "127.0.0.1:8080:80", "127.0.0.1:x", "localhost:123456", "user@localhost", "localhost/x",
     "localhost, evil.example", "local host", "[::1%25eth0]"],
)  # fmt: skip
@pytest.mark.parametrize("listed", [(), ("*",)], ids=["", "any"])
def test_a_host_that_is_none_is_refused_even_where_any_name_will_do(host: str, listed: tuple[str, ...]) -> None:
    hosts = Hosts(listed)
    assert not hosts.allows(host.encode())
    with pytest.raises(MalformedHost):
        hosts.check([host.encode()])


def test_a_request_has_one_host() -> None:
    for several in ([], [b"localhost", b"localhost"]):
        with pytest.raises(MalformedHost):
            Hosts().check(several)


def test_names_that_are_advertised_or_listed_are_the_doors() -> None:
    hosts = Hosts(["queue.example", "queue"])
    assert not hosts.allows(b"broker-1:8080")
    hosts.advertise("Broker-1")
    assert all(hosts.allows(host) for host in (b"queue.example:80", b"QUEUE", b"broker-1:8080"))
    assert not hosts.allows(b"other.example")
    assert Hosts(["*"]).allows(b"anything.example")


def test_what_is_remembered_is_bounded() -> None:
    hosts = Hosts()
    assert not any(hosts.allows(b"%d.example" % number) for number in range(2 * KNOWN_MAX))
    assert len(hosts._known) <= KNOWN_MAX


def test_a_page_with_a_name_that_points_here_gets_nothing(api: Api) -> None:
    for _ in range(3):  # also when its headers have come before
        assert api.post("/send", MESSAGE, Host=EVIL, Origin=f"http://{EVIL}").code == "wrong-host"
        assert api.post("/send", MESSAGE, Host=EVIL).status == 421
        assert api.get("/receive?user_id=b", Host=EVIL).code == "wrong-host"
        assert api.get("/v1/topics", Host=EVIL).code == "wrong-host"
        assert api.get("/metrics", Host=EVIL).code == "wrong-host"
        assert api.post("/send", MESSAGE).status == 200
    host, _, port = api.address.rpartition(":")
    way = socket.create_connection((host, int(port)))
    with pytest.raises(InvalidStatus) as refused, connect(f"ws://{EVIL}/v1/live", sock=way):
        pass
    assert refused.value.response.status_code == 421


def raw(api: Api, *lines: str) -> bytes:
    """The answer to a request that is these lines."""
    host, _, port = api.address.rpartition(":")
    with socket.create_connection((host, int(port)), LIMIT_S) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return connection.recv(65_536)


@pytest.mark.parametrize("target", ["/v1/topics", "/receive?user_id=b"])
def test_a_request_without_a_host_is_refused_whatever_its_version(api: Api, target: str) -> None:
    for version in ("1.0", "1.1"):
        first = f"GET {target} HTTP/{version}"
        assert raw(api, first, "Host: localhost").startswith(b"HTTP/1.1 200 ")
        for hosts in ((), ("Host:",), ("Host: [::1]evil",), ("Host: localhost", "Host: localhost")):
            answer = raw(api, first, *hosts)
            assert answer.startswith(b"HTTP/1.1 400 "), (version, hosts, answer)
            assert b"malformed-host" in answer


def test_a_door_that_others_can_reach_has_no_more_names(tmp_path: Path) -> None:
    """Else a page whose name was made to point to that machine could do everything."""
    with BrokerProcess(tmp_path / "data", "--http", "0.0.0.0:0") as process:
        api = Api("127.0.0.1:" + process.http.rpartition(":")[2])
        assert api.get("/v1/topics").status == 200
        told = api.ok("GET", "/v1/cluster")["brokers"][0]["http"]
        assert api.get("/v1/topics", Host=told).status == 200, "clients are told this name"
        refused = api.get("/v1/topics", Host="broker-1:8080")
        assert (refused.status, refused.code) == (421, "wrong-host")
        assert "http-hosts" in refused.json["next"]


@pytest.fixture
def named(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", environment={"RUNNEL_HTTP_HOSTS": "Queue.example, q"}) as process:
        yield process


def test_names_can_be_listed(named: BrokerProcess) -> None:
    api = Api(named.http)
    for _ in range(3):
        assert api.post("/send", MESSAGE, Host="queue.example").status == 200
        assert api.get("/v1/topics", Host="q:8080").status == 200
        assert api.get("/v1/topics", Host=EVIL).code == "wrong-host"
