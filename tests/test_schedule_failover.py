"""Delayed messages in a cluster of real processes, whose schedule loses its leader to SIGKILL again and again.

Some are parked before, others while brokers die, through HTTP and through the client, with names and without; some are
cancelled. A reader looks on. More of it: `make faults-schedule`.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tests.conftest import cluster_broker
from tests.doors.http.api import Api
from tests.helpers.arrivals import Arrivals, Arrived

from runnel.client.sync import connect
from runnel.model.errors import RunnelError
from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper

KILLS = int(os.environ.get("RUNNEL_SCHEDULE_KILLS", "2"))
PARKED = int(os.environ.get("RUNNEL_SCHEDULE_MESSAGES", "1000"))  # before the first kill; more follow
BURST = 500
PARTITIONS = 3
LIMIT_S = 60.0
SPREAD_MS = 4_000 * KILLS  # the times of those that are parked first


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def wait_for(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end, f"not within {LIMIT_S:g} s: {what}"
        time.sleep(0.05)


@dataclass
class Told:
    """What senders know of their messages, by value."""

    due_ms: dict[str, int] = field(default_factory=dict)
    kept_ms: dict[str, int] = field(default_factory=dict)  # when it was certain that it waits
    cancelled: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)  # they may come, once, or not

    @property
    def expected(self) -> set[str]:
        return self.kept_ms.keys() - self.cancelled - self.unsure


class Trio:
    """Three brokers, one of which may be away."""

    def __init__(self, brokers: dict[int, BrokerProcess], pool: Executor) -> None:
        self.brokers = brokers
        self.away = 0
        self._pool = pool
        self._coming: Future[None] | None = None

    @property
    def api(self) -> Api:
        return Api(random.choice([broker.http for number, broker in self.brokers.items() if number != self.away]))

    @property
    def kafka(self) -> list[str]:
        return [broker.kafka for broker in self.brokers.values()]

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer; 0 if nobody answered."""
        try:
            answer = self.api.ask(method, path, body)
        except OSError:
            return 0, None
        return answer.status, answer.json if answer.content else None

    def schedule(self) -> dict[str, Any]:
        """The one partition of the schedule's topic, as a broker sees it."""
        status, told = self.ask("GET", "/v1/topics/__schedule")
        return told["partitions"][0] if status == 200 else {"leader": -1, "in_sync": []}

    def fell(self, about_to: Callable[[], None]) -> None:
        """Kill the leader of the schedule, and have it come back while others go on."""
        self.all_back()
        wait_for(lambda: len(self.schedule()["in_sync"]) == 3, "all replicas of the schedule in sync")
        about_to()
        leader = self.schedule()["leader"]
        self.away = leader
        self.brokers[leader].kill()
        wait_for(lambda: self.schedule()["leader"] not in (leader, -1), "another leader of the schedule")
        self._coming = self._pool.submit(self._come_back, leader)

    def _come_back(self, number: int) -> None:
        time.sleep(random.uniform(0, 1))
        self.brokers[number].start()
        self.away = 0

    def all_back(self) -> None:
        if self._coming is not None:
            self._coming.result(LIMIT_S)


class Sender:
    """Sends a message for later every now and then, until it is told to end."""

    def __init__(self, name: str, told: Told, send: Callable[[str, int, int, str | None], bool]) -> None:
        self._name, self._told, self._send = name, told, send
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    @contextmanager
    def sending(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    def _work(self) -> None:
        number = 0
        while not self._over.is_set():
            value, due, named = f"{self._name}{number}", now_ms() + random.randrange(2_500), number % 2 == 0
            self._told.due_ms[value] = due
            partition = number % PARTITIONS
            number += 1
            kept = self._send(value, partition, due, value if named else None)
            while named and not kept:
                kept = self._send(value, partition, due, value)
            if kept:
                self._told.kept_ms[value] = now_ms()
            else:
                self._told.unsure.add(value)
            time.sleep(0.02)


def park(trio: Trio, told: Told, name: str, count: int, begin_ms: int, spread_ms: int) -> dict[str, str]:
    """Have many wait, over HTTP, a hundred at a time; their ids."""
    ids: dict[str, str] = {}
    for first in range(0, count, 100):
        numbers = {f"{name}{number}": number for number in range(first, min(first + 100, count))}
        told.due_ms |= {value: begin_ms + number * 7919 % spread_ms for value, number in numbers.items()}
        body = [
            {"text": value, "partition": number % PARTITIONS, "deliver_at": told.due_ms[value]}
            for value, number in numbers.items()
        ]
        results = trio.api.ok("POST", "/v1/topics/t/messages", body)["results"]
        assert all("scheduled_id" in each for each in results), results[0]
        told.kept_ms |= dict.fromkeys(numbers, now_ms())
        ids |= {value: each["scheduled_id"] for value, each in zip(numbers, results, strict=True)}
    return ids


def burst(trio: Trio, told: Told, number: int) -> None:
    """Have so many come due at once that the next kill strikes in the middle of them."""
    park(trio, told, f"burst{number}-", BURST, now_ms() + 1_000, 1_000)
    time.sleep(random.uniform(1.0, 1.8))


def cancel_some(trio: Trio, told: Told, ids: dict[str, str]) -> None:
    for value, id in ids.items():
        status, _ = trio.ask("DELETE", f"/v1/schedule/{id}")
        if status == 204:
            told.cancelled.add(value)
        elif status != 404:  # it was delivered, or is being delivered
            told.unsure.add(value)


def cancel_all(trio: Trio, told: Told, ids: dict[str, str]) -> None:
    """Those that are not due yet: who was not answered asks again, and finds nothing if it was done."""
    for value, id in ids.items():
        wait_for(lambda id=id: trio.ask("DELETE", f"/v1/schedule/{id}")[0] in (204, 404), "cancelled")  # type: ignore[misc]
        told.cancelled.add(value)


def over_http(trio: Trio) -> Callable[[str, int, int, str | None], bool]:
    def send(value: str, partition: int, due: int, name: str | None) -> bool:
        message: dict[str, Any] = {"text": value, "partition": partition, "deliver_at": due}
        status, _ = trio.ask("POST", "/v1/topics/t/messages", message | ({"message_id": name} if name else {}))
        return status == 200

    return send


def with_client(stack: ExitStack, brokers: list[str]) -> Callable[[str, int, int, str | None], bool]:
    runnel = stack.enter_context(connect(*brokers))

    def send(value: str, partition: int, due: int, name: str | None) -> bool:
        at = datetime.fromtimestamp(due / 1000, UTC)
        try:
            runnel.send("t", value, partition=partition, at=at, message_id=name)
        except RunnelError:
            return False
        return True

    return send


def check(told: Told, came: list[Arrived]) -> None:
    counts = Counter(each.value for each in came)
    assert {value for value, count in counts.items() if count > 1} == set(), "they came twice"
    assert told.expected - counts.keys() == set(), "they are lost"
    assert told.cancelled & counts.keys() == set(), "they were cancelled"
    assert [each for each in came if each.at_ms < told.due_ms[each.value]] == [], "they came early"
    certain = told.expected - told.unsure
    for partition in range(PARTITIONS):
        line = [each.value for each in sorted(came, key=lambda each: each.offset) if each.partition == partition]
        latest = ""
        for value in line:
            if latest and value in certain and max(told.due_ms[value], told.kept_ms[value]) < told.due_ms[latest]:
                raise AssertionError(f"{latest} overtook {value}")
            if not latest or told.due_ms[value] > told.due_ms[latest]:
                latest = value


def test_kills_of_leaders_lose_nothing_double_nothing_and_send_nothing_early(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(3))
        brokers = {n: cluster_broker(zookeeper, tmp_path, n, RUNNEL_SCHEDULE_PARTITIONS="1") for n in (1, 2, 3)}
        list(pool.map(stack.enter_context, brokers.values()))
        trio, told = Trio(brokers, pool), Told()
        stack.callback(trio.all_back)
        topic = {"name": "t", "partitions": PARTITIONS, "replicas": 3, "settings": {"min.insync.replicas": 2}}
        wait_for(lambda: trio.ask("POST", "/v1/topics", topic)[0] == 201, "three brokers that serve")
        reader = stack.enter_context(Arrivals(trio.kafka, "t", PARTITIONS).watched())
        ids = park(trio, told, "first", PARKED, now_ms() + 2_000, SPREAD_MS)
        ids = {value: id for value, id in ids.items() if value.endswith("7")}  # they are to be cancelled, if in time
        far = park(trio, told, "far", 5 * KILLS, now_ms() + 3_600_000, 1_000)
        own = with_client(stack, trio.kafka)
        with Sender("http", told, over_http(trio)).sending(), Sender("client", told, own).sending():
            for number in range(KILLS):
                trio.fell(partial(burst, trio, told, number))
                some = dict(list(ids.items())[: len(ids) // KILLS])
                cancel_some(trio, told, some)
                ids = {value: id for value, id in ids.items() if value not in some}
                cancel_all(trio, told, {value: far.pop(value) for value in list(far)[:5]})
        trio.all_back()
        wait_for(lambda: trio.ask("GET", "/v1/schedule/count")[1] == {"messages": 0, "next_due_ms": None}, "all sent")
        wait_for(lambda: told.expected <= reader.values, "all read")
        check(told, reader.came)
        assert len(told.expected) > PARKED // 2
