"""Cars that drive through a city and tell where they are.

Rule 1: the same seed gives the same reports, whatever the clock says: a report's time is counted from `begin_ms`.
Rule 2: cars report every `period_ms`, each at its own moment of it: the load is even.
Rule 3: reports come in the order in which they are sent. A late one was made at its `at_ms`, and is sent later.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from runnel.pipelines.jobs.fleet.city import City, Street, city, degrees

TURN_BACK = 0.02  # of the weight of a street that goes on
CENTRE = 1.45  # how much rather a car drives inward than outward
LIGHT = 0.18  # of crossings with a red light
LIGHT_S = 22.0
SILENT_S = (90.0, 300.0)
LATE_S = (5.0, 25.0)


class Report(NamedTuple):
    """Where a car was."""

    car: str
    at_ms: int
    lat: float
    lon: float

    def value(self) -> bytes:
        return b'{"car":"%s","at":%d,"lat":%.5f,"lon":%.5f}' % (self.car.encode(), self.at_ms, self.lat, self.lon)


class Outgoing(NamedTuple):
    """A report, and when it is sent."""

    send_ms: int
    report: Report


@dataclass(frozen=True, slots=True)
class FleetPlan:
    cars: int
    seed: int = 1
    period_ms: int = 10_000
    silent: float = 0.03  # of all cars, at any time
    late: float = 0.01  # of all reports


class Car:
    """One car on its way."""

    def __init__(self, town: City, chance: Random) -> None:
        self._town = town
        self._chance = chance
        self._from = chance.choice([place for place, streets in enumerate(town.streets) if streets])
        self._street = chance.choice(town.streets[self._from])
        self._metres = chance.uniform(0, self._street.length_m)
        self._haste = chance.uniform(0.75, 1.15)
        self._waits_s = 0.0
        self.silent_until_ms = 0

    def move(self, seconds: float) -> None:
        """Drive on, through as many crossings as the time allows."""
        while seconds > 0:
            if self._waits_s > 0:
                waited = min(seconds, self._waits_s)
                self._waits_s -= waited
                seconds -= waited
                continue
            metres_per_s = self._street.kmh * self._haste / 3.6
            left = self._street.length_m - self._metres
            if metres_per_s * seconds < left:
                self._metres += metres_per_s * seconds
                return
            seconds -= left / metres_per_s
            self._cross()

    def _cross(self) -> None:
        came_from, self._from = self._from, self._street.end
        self._street = self._chosen(came_from)
        self._metres = 0.0
        if self._chance.random() < LIGHT:
            self._waits_s = self._chance.uniform(2, LIGHT_S)

    def _chosen(self, came_from: int) -> Street:
        """The next street: straight on, main roads and the centre draw it; it seldom turns back."""
        streets = self._town.streets[self._from]
        here, before = self._town.places[self._from], self._town.places[came_from]
        ahead = (here[0] - before[0], here[1] - before[1])
        weights = []
        for street in streets:
            there = self._town.places[street.end]
            dot = ahead[0] * (there[0] - here[0]) + ahead[1] * (there[1] - here[1])
            straight = 3.0 if dot > 0.5 * street.length_m * math.hypot(*ahead) else 1.0
            inward = CENTRE if math.hypot(*there) < math.hypot(*here) else 1.0
            weights.append(
                (TURN_BACK if street.end == came_from else straight) * inward * (2.0 if street.main else 1.0)
            )
        return self._chance.choices(streets, weights)[0]

    def where(self) -> tuple[float, float]:
        """Latitude and longitude."""
        (east_a, north_a), (east_b, north_b) = self._town.places[self._from], self._town.places[self._street.end]
        part = self._metres / self._street.length_m
        return degrees(east_a + part * (east_b - east_a), north_a + part * (north_b - north_a))


def reports(plan: FleetPlan, begin_ms: int) -> Iterator[Outgoing]:
    """All that the cars send, for ever."""
    town = city(plan.seed)
    chance = Random(f"fleet {plan.seed}")
    cars = [Car(town, Random(f"car {plan.seed} {number}")) for number in range(plan.cars)]
    held: list[Outgoing] = []  # late ones, by when they are sent
    tick_ms = begin_ms
    while True:
        for number, car in enumerate(cars):
            at_ms = tick_ms + number * plan.period_ms // plan.cars
            while held and held[0].send_ms <= at_ms:
                yield heapq.heappop(held)
            car.move(plan.period_ms / 1000)
            if _is_silent(car, at_ms, plan, chance):
                continue
            report = Report(f"car-{number:05}", at_ms, *car.where())
            if chance.random() < plan.late:
                heapq.heappush(held, Outgoing(at_ms + round(1000 * chance.uniform(*LATE_S)), report))
            else:
                yield Outgoing(at_ms, report)
        tick_ms += plan.period_ms


def _is_silent(car: Car, at_ms: int, plan: FleetPlan, chance: Random) -> bool:
    """Whether it says nothing now; the odds are such that the planned part of all cars is silent at any time."""
    if at_ms < car.silent_until_ms:
        return True
    periods = 500 * sum(SILENT_S) / plan.period_ms  # that a silence lasts, on average
    if plan.silent > 0 and chance.random() < plan.silent / ((1 - plan.silent) * periods):
        car.silent_until_ms = at_ms + round(1000 * chance.uniform(*SILENT_S))
        return True
    return False
