"""A broker dies that ran a member of a group: the others have its partitions long before its session would be over."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.compat.waiting import wait_until
from tests.conftest import cluster_broker

from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper

from .api import Api

PARTITIONS = 4
LIMIT_S = 120  # far below the session
# Sessions of members over HTTP can't be set: the brokers of this test give them five minutes as they start.
LONG_SESSIONS = """
from runnel.client.membership import GroupSettings
GroupSettings.__init__.__defaults__ = (300_000, *GroupSettings.__init__.__defaults__[1:])
"""
DYING, STAYING = 2, (1, 3)


@dataclass
class Cluster:
    brokers: dict[int, BrokerProcess]

    def api(self, number: int) -> Api:
        return Api(self.brokers[number].http)


@pytest.fixture
def cluster(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "sitecustomize.py").write_text(LONG_SESSIONS)
    with ExitStack() as stack:
        more = {"PYTHONPATH": str(tmp_path)}
        made = {n: stack.enter_context(cluster_broker(zookeeper, tmp_path, n, **more)) for n in (1, 2, 3)}
        yield Cluster(made)


class Seat:
    """A member over HTTP, and what it was told it has."""

    def __init__(self, api: Api, group: str) -> None:
        self.api = api
        self._group = f"/v1/groups/{group}/members"
        self.id = str(api.ok("POST", self._group, {"topics": ["t"], "expires_ms": 3_600_000})["member"])
        self.partitions = 0

    def poll(self) -> int:
        answer = self.api.post(f"{self._group}/{self.id}/poll?wait_ms=100")
        if answer.status == 200:
            self.partitions = len(answer.json["partitions"])
        return self.partitions


def two_seats(cluster: Cluster, group: str) -> Seat:
    """A member at the broker that dies, and the one at another broker that is to inherit its partitions."""
    dying, staying = Seat(cluster.api(DYING), group), Seat(cluster.api(STAYING[0]), group)
    wait_until(lambda: [dying.poll(), staying.poll()] == [2, 2], f"a half for each member of {group}", limit_s=LIMIT_S)
    return staying


def groups(cluster: Cluster) -> tuple[str, str]:
    """One whose coordinator dies, too, and one whose coordinator stays."""
    api, found = cluster.api(1), dict[bool, str]()
    for number in range(100):
        if len(found) == 2:
            break
        name = f"g{number}"
        member = Seat(api, name)
        wait_until(lambda member=member: member.poll() == PARTITIONS, f"all for {name}", limit_s=LIMIT_S)  # type: ignore[misc]
        coordinator = api.ok("GET", f"/v1/groups/{name}")["coordinator"]
        found.setdefault(coordinator == cluster.brokers[DYING].kafka, name)
        api.ok("DELETE", f"/v1/groups/{name}/members/{member.id}")
    return found[True], found[False]


@pytest.mark.parametrize("restarted", [False, True])
def test_the_others_inherit_at_once(cluster: Cluster, restarted: bool) -> None:
    settings = {"name": "t", "partitions": PARTITIONS, "replicas": 3, "settings": {"min.insync.replicas": 2}}
    cluster.api(1).ok("POST", "/v1/topics", settings)
    staying = [two_seats(cluster, group) for group in groups(cluster)]
    cluster.brokers[DYING].kill()
    if restarted:
        cluster.brokers[DYING].start()
    for seat in staying:
        wait_until(lambda seat=seat: seat.poll() == PARTITIONS, "all that the dead had", limit_s=LIMIT_S)  # type: ignore[misc]
