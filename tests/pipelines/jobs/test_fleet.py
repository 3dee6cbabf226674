"""The fleet without Spark: the city, the cars, what is made of their reports, and how they are sent."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise, takewhile
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from runnel.client.sync import connect
from runnel.dev.zookeeper import free_ports
from runnel.pipelines.jobs.fleet import track
from runnel.pipelines.jobs.fleet.cars import FleetPlan, Outgoing, Report, reports
from runnel.pipelines.jobs.fleet.city import city
from runnel.pipelines.jobs.fleet.page import PageConf, serving
from runnel.pipelines.jobs.fleet.sending import SendConf, send
from runnel.pipelines.jobs.fleet.topics import Topics, make_all
from runnel.pipelines.jobs.fleet.track import Cars, Rules, Told
from runnel.testing.process import BrokerProcess

MINUTE = 60_000
NORTH_100_M = 100 / 111_195  # degrees
RULES = Rules(silent_after_ms=MINUTE, forget_after_ms=60 * MINUTE)


def sent_for(plan: FleetPlan, span_ms: int) -> list[Outgoing]:
    return list(takewhile(lambda each: each.send_ms < span_ms, reports(plan, 0)))


# --- the city
def test_the_same_seed_gives_the_same_city() -> None:
    assert city(7) == city(7)
    assert city(7) != city(8)


@pytest.mark.parametrize("seed", range(5))
def test_every_crossing_can_be_left_by_another_way(seed: int) -> None:
    town = city(seed)
    assert all(len({street.end for street in streets}) >= 2 for streets in town.streets if streets)
    assert sum(1 for streets in town.streets if streets) > 1000


def test_streets_lead_both_ways() -> None:
    town = city(1)
    ways = {(here, street.end) for here, streets in enumerate(town.streets) for street in streets}
    assert ways == {(end, here) for here, end in ways}


# --- the cars
def test_the_same_seed_gives_the_same_reports() -> None:
    plan = FleetPlan(20, seed=3)
    assert list(islice(reports(plan, 1000), 500)) == list(islice(reports(plan, 1000), 500))
    assert list(islice(reports(plan, 1000), 500)) != list(islice(reports(FleetPlan(20, seed=4), 1000), 500))


def test_every_car_reports_every_ten_seconds_at_a_moment_of_its_own() -> None:
    sent = sent_for(FleetPlan(10, silent=0, late=0), 5 * MINUTE)
    assert Counter(each.report.car for each in sent) == {f"car-{number:05}": 30 for number in range(10)}
    assert {later.send_ms - before.send_ms for before, later in pairwise(sent)} == {1000}


def test_reports_come_in_the_order_in_which_they_are_sent_and_some_late() -> None:
    sent = sent_for(FleetPlan(100, late=0.1), 10 * MINUTE)
    assert all(before.send_ms <= later.send_ms for before, later in pairwise(sent))
    late = [each for each in sent if each.send_ms > each.report.at_ms]
    assert 0.05 < len(late) / len(sent) < 0.15
    assert len({(each.report.car, each.report.at_ms) for each in sent}) == len(sent)


def test_about_the_planned_part_of_the_cars_is_silent() -> None:
    sent = sent_for(FleetPlan(200, silent=0.2, late=0), 60 * MINUTE)
    assert 0.7 < len(sent) / (200 * 360) < 0.9


def test_cars_drive_as_cars_do() -> None:
    cars: Cars = {}
    moving = [
        told.state.kmh
        for each in sent_for(FleetPlan(50), 10 * MINUTE)
        for told in track.reported(cars, [each.report])
        if told.state is not None and told.state.kmh
    ]
    assert max(moving) < 66
    assert 20 < sum(moving) / len(moving) < 45


# --- what is known of a car
def at(seconds: int, north: int = 0, car: str = "a") -> Report:
    return Report(car, seconds * 1000, 52.0 + north * NORTH_100_M, 13.0)


def kinds(told: list[Told]) -> list[tuple[str, str]]:
    return [(each.kind, each.car) for each in told]


def test_speed_and_heading_come_from_two_successive_reports() -> None:
    cars: Cars = {}
    [first] = track.reported(cars, [at(0)])
    assert first.state is not None
    assert (first.state.kmh, first.state.heading) == (None, None)
    [second] = track.reported(cars, [at(10, north=1)])
    assert second.state is not None
    assert second.state.kmh == pytest.approx(36, abs=0.1)
    assert second.state.heading == 0
    [third] = track.reported(cars, [at(20, north=-1)])
    assert third.state is not None
    assert third.state.kmh == pytest.approx(72, abs=0.2)
    assert third.state.heading == 180


def test_reports_of_one_batch_are_taken_in_the_order_of_their_time_and_told_once() -> None:
    cars: Cars = {}
    [told] = track.reported(cars, [at(20, north=2), at(0), at(10, north=1)])
    assert told.state is not None
    assert (told.state.at_ms, told.state.reports, told.state.late) == (20_000, 3, 0)
    assert told.state.kmh == pytest.approx(36, abs=0.1)


def test_a_late_report_is_counted_and_moves_nothing() -> None:
    cars: Cars = {}
    list(track.reported(cars, [at(0), at(20, north=2)]))
    [told] = track.reported(cars, [at(10, north=50)])
    assert told.state is not None
    assert (told.state.at_ms, told.state.reports, told.state.late) == (20_000, 3, 1)
    assert told.state.lat == at(20, north=2).lat


def test_a_jump_has_no_speed() -> None:
    cars: Cars = {}
    list(track.reported(cars, [at(0), at(10, north=30)]))
    assert cars["a"].kmh is None


def test_a_car_that_says_nothing_is_told_to_be_silent_once_and_told_when_it_is_back() -> None:
    cars: Cars = {}
    list(track.reported(cars, [at(0), at(10, north=1)]))
    assert list(track.passed(cars, 69_999, RULES)) == []
    assert kinds(list(track.passed(cars, 70_000, RULES))) == [("silent", "a"), ("car", "a")]
    assert list(track.passed(cars, 90_000, RULES)) == []
    assert kinds(list(track.reported(cars, [at(100, north=90)]))) == [("back", "a"), ("car", "a")]
    assert not cars["a"].silent
    assert cars["a"].kmh is None  # nobody knows which way it went


def test_a_car_that_is_silent_for_long_is_forgotten_in_the_topic_too() -> None:
    cars: Cars = {}
    list(track.reported(cars, [at(0)]))
    list(track.passed(cars, MINUTE, RULES))
    [told] = track.passed(cars, 60 * MINUTE, RULES)
    assert (told.kind, track.value_of(told)) == ("car", None)
    assert cars == {}


def test_the_next_moment_is_the_first_at_which_time_has_something_to_tell() -> None:
    cars: Cars = {}
    assert track.next_ms(cars, RULES) is None
    list(track.reported(cars, [at(0), at(30, car="b")]))
    assert track.next_ms(cars, RULES) == MINUTE
    list(track.passed(cars, MINUTE, RULES))
    assert track.next_ms(cars, RULES) == 90_000
    list(track.passed(cars, 90_000, RULES))
    assert track.next_ms(cars, RULES) == 60 * MINUTE


def test_state_survives_being_kept() -> None:
    cars: Cars = {}
    list(track.reported(cars, [at(0), at(10, north=1), at(5, car="b")]))
    assert track.unpacked(track.packed(cars)) == cars
    assert track.unpacked(None) == {}


@pytest.mark.parametrize(("to", "degrees"), [((1, 0), 0), ((0, 1), 90), ((-1, 0), 180), ((0, -1), 270)])
def test_headings_go_clockwise_from_north(to: tuple[int, int], degrees: int) -> None:
    assert track.bearing(52.0, 13.0, 52.0 + to[0] * 0.01, 13.0 + to[1] * 0.01) == degrees


# --- sending
def test_the_past_is_sent_at_once_and_lands_once(broker: BrokerProcess) -> None:
    plan = FleetPlan(30, seed=5)
    conf = SendConf(broker.kafka, "fleet-sent", plan, partitions=2, for_ms=5 * MINUTE, at_once=True)
    told: list[int] = []
    count = asyncio.run(send(conf, asyncio.Event(), told.append))
    assert count == len(sent_for(plan, 5 * MINUTE))
    with connect(broker.kafka) as runnel:
        found = [message.json() for message in islice(runnel.stream("fleet-sent"), count)]
    assert Counter(each["car"] for each in found) == Counter(each.report.car for each in sent_for(plan, 5 * MINUTE))


def test_a_stop_ends_the_sending(broker: BrokerProcess) -> None:
    async def stopped() -> int:
        stop = asyncio.Event()
        sending = asyncio.ensure_future(send(SendConf(broker.kafka, "fleet-stop", FleetPlan(3)), stop, print))
        asyncio.get_running_loop().call_later(0.2, stop.set)
        return await asyncio.wait_for(sending, 30)

    assert asyncio.run(stopped()) < 30


# --- the page
@pytest.fixture(scope="module")
def page(broker: BrokerProcess) -> Iterator[str]:
    make_all(broker.kafka, Topics("page-in", "page"))
    with serving(PageConf(broker.http, port=0, topics=Topics("page-in", "page"))) as address:
        yield address


def got(address: str, path: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urlopen(Request(address + path, headers=headers), timeout=30) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()


def test_the_page_needs_nothing_from_elsewhere(page: str) -> None:
    status, text = got(page, "")
    assert status == 200
    assert b"<canvas" in text
    assert set(re.findall(rb"https?://[^\s\"'`]+", text)) == {b"http://www.w3.org/2000/svg"}  # a name, not a place


def test_the_page_passes_on_events_of_the_results(page: str, broker: BrokerProcess) -> None:
    with connect(broker.kafka) as runnel:
        runnel.send("page.alerts", {"what": "silent", "car": "a"}, key="a")
    with urlopen(page + "live/alerts?begin=start", timeout=30) as events:
        lines = [events.readline() for _ in range(8)]
    assert events.headers["Content-Type"] == "text/event-stream"
    [data] = [json.loads(line.removeprefix(b"data:")) for line in lines if b'"car"' in line]
    assert (data["key"], data["value"]["what"]) == ("a", "silent")


def test_a_browser_that_comes_back_goes_on_where_it_was(page: str, broker: BrokerProcess) -> None:
    with connect(broker.kafka) as runnel:
        sent = [runnel.send("page.alerts", {"car": name}, partition=0).offset for name in ("b", "c")]
    again = Request(page + "live/alerts?begin=start", headers={"Last-Event-ID": f"0-{sent[1]}"})
    with urlopen(again, timeout=30) as events:
        found = next(line for line in events if b'"car"' in line)
    assert json.loads(found.removeprefix(b"data:"))["value"] == {"car": "c"}


@pytest.mark.parametrize("path", ["v1/topics", "live/page-in", "live/../v1/topics", "live/cars/events"])
def test_nothing_else_of_the_broker_is_to_be_had(page: str, path: str) -> None:
    assert got(page, path)[0] == 404


def test_a_page_of_another_name_gets_nothing(page: str) -> None:
    port = page.rstrip("/").rpartition(":")[2]
    assert got(page, "", Host=f"evil.example:{port}")[0] == 403
    assert got(page, "live/cars", Host=f"evil.example:{port}")[0] == 403


def test_a_broker_that_is_away_is_said_to_be_away() -> None:
    [port] = free_ports(1)
    with serving(PageConf(f"127.0.0.1:{port}", port=0)) as address:
        status, text = got(address, "live/cars?begin=end")
    assert status == 502
    assert b"does not answer" in text
