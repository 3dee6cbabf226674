"""By which names the door may be called: a page whose name was made to point here gets nothing."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from runnel.doors.http.hosts import KNOWN_MAX, Hosts
from runnel.testing.process import BrokerProcess

from .api import Api

EVIL = "evil.example:8080"
MESSAGE = {"from_user": "a", "to_user": "b", "message": "hello"}


def bound(address: str, *listed: str, advertised: str = "") -> Hosts:
    hosts = Hosts(listed, advertised)
    hosts.bound(address)
    return hosts


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8080", "127.0.0.1", "localhost:8080", "LOCALHOST", "localhost.", "app.localhost:80", "[::1]:8080",
     "192.168.1.7:8080", "10.0.0.1"],
)  # fmt: skip
def test_addresses_and_localhost_are_never_refused(host: str) -> None:
    assert bound("127.0.0.1").allows(host.encode())
    assert bound("0.0.0.0", "queue.example").allows(host.encode())


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1"])
def test_on_loopback_no_other_name_is_the_doors(address: str) -> None:
    for host in (b"evil.example:8080", b"evil.example", b"localhost.evil.example", b"127.0.0.1.evil.example"):
        assert not bound(address).allows(host), host


def test_names_that_are_advertised_or_listed_are_the_doors() -> None:
    hosts = bound("127.0.0.1", "queue.example", "queue", advertised="Broker-1")
    assert all(hosts.allows(host) for host in (b"queue.example:80", b"QUEUE", b"broker-1:8080"))
    assert not hosts.allows(b"other.example")


def test_where_others_can_reach_it_any_name_will_do_unless_they_are_listed() -> None:
    assert bound("0.0.0.0").allows(b"broker-1:8080")
    assert bound("127.0.0.1", "*").allows(b"anything.example")
    assert not bound("0.0.0.0", "queue.example").allows(b"broker-1:8080")


def test_what_is_remembered_is_bounded() -> None:
    hosts = bound("127.0.0.1")
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
