"""What is known of each car, from its reports: a state machine that knows no Spark and no clock.

Rule 1: speed and heading come from two successive reports of a car. A report that is not newer than the last one is
        counted as late, and moves nothing.
Rule 2: a car is silent when event time has passed `silent_after_ms` since its last report; it is told once. It is
        told again when the car is back.
Rule 3: a car that has been silent for `forget_after_ms` is forgotten: state is bounded by the cars that are about.
Rule 4: every accepted report is counted in its car's `reports`: who adds them up sees what was lost or doubled.

              report                  time passes              time passes
    (unknown) ------> moving|standing -----------> silent --------------------> (unknown)
                            ^          report        |
                            +------------------------+  back
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from runnel.pipelines.jobs.fleet.cars import Report

EARTH_M = 6_371_000.0
STANDING_KMH = 2.0  # below: it does not move, whatever its receiver says
PLAUSIBLE_KMH = 300.0  # above: a jump of the receiver, no speed


@dataclass(frozen=True, slots=True)
class Rules:
    silent_after_ms: int = 60_000
    forget_after_ms: int = 3_600_000


class Car(msgspec.Struct, array_like=True):
    """The last of a car."""

    at_ms: int
    lat: float
    lon: float
    kmh: float | None = None  # None: not known after a first report, a silence or a jump
    heading: int | None = None  # degrees from north, clockwise
    reports: int = 0
    late: int = 0
    silent: bool = False


class Told(msgspec.Struct, frozen=True):
    """Something to tell of a car: its newest state (None: forgotten), or that it went silent or came back."""

    kind: str  # car, silent, back
    car: str
    state: Car | None
    at_ms: int


Cars = dict[str, Car]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Cars).decode
_json = msgspec.json.Encoder().encode


def packed(cars: Cars) -> bytes:
    return _encode(cars)


def unpacked(kept: bytes | None) -> Cars:
    return _decode(kept) if kept else {}


# --- deciding
def reported(cars: Cars, reports: Iterable[Report]) -> Iterator[Told]:
    """Take reports in, in the order of their time; each car that changed is told once, as it is at the end."""
    changed: dict[str, None] = {}
    for report in sorted(reports, key=lambda each: each.at_ms):
        before = cars.get(report.car)
        if before is not None and report.at_ms <= before.at_ms:
            before.late += 1
            before.reports += 1
            changed[report.car] = None
            continue
        if before is not None and before.silent:
            yield Told("back", report.car, before, report.at_ms)
        cars[report.car] = _after(before, report)
        changed[report.car] = None
    for name in changed:
        yield Told("car", name, cars[name], cars[name].at_ms)


def _after(before: Car | None, report: Report) -> Car:
    if before is None:
        return Car(report.at_ms, report.lat, report.lon, reports=1)
    kmh = None if before.silent else speed_kmh(before, report)
    heading = before.heading
    if kmh is not None and kmh >= STANDING_KMH:
        heading = bearing(before.lat, before.lon, report.lat, report.lon)
    return Car(report.at_ms, report.lat, report.lon, kmh, heading, before.reports + 1, before.late)


def passed(cars: Cars, now_ms: int, rules: Rules) -> Iterator[Told]:
    """Let event time pass: who is silent now, and who is forgotten."""
    for name, car in list(cars.items()):
        if now_ms >= car.at_ms + rules.forget_after_ms:
            del cars[name]
            yield Told("car", name, None, car.at_ms)
        elif not car.silent and now_ms >= car.at_ms + rules.silent_after_ms:
            car.silent, car.kmh = True, None
            yield Told("silent", name, car, car.at_ms)
            yield Told("car", name, car, car.at_ms)


def next_ms(cars: Cars, rules: Rules) -> int | None:
    """When time passing will have something to tell, at the earliest."""
    spans = ((car.at_ms + (rules.forget_after_ms if car.silent else rules.silent_after_ms)) for car in cars.values())
    return min(spans, default=None)


# --- measuring
def speed_kmh(before: Car, report: Report) -> float | None:
    metres = distance_m(before.lat, before.lon, report.lat, report.lon)
    kmh = round(3600 * metres / (report.at_ms - before.at_ms), 1)
    return kmh if kmh <= PLAUSIBLE_KMH else None


def distance_m(lat_a: float, lon_a: float, lat_b: float, lon_b: float) -> float:
    """Along the earth's surface (haversine)."""
    north, east = math.radians(lat_b - lat_a) / 2, math.radians(lon_b - lon_a) / 2
    chord = math.sin(north) ** 2 + math.cos(math.radians(lat_a)) * math.cos(math.radians(lat_b)) * math.sin(east) ** 2
    return 2 * EARTH_M * math.asin(min(1.0, math.sqrt(chord)))


def bearing(lat_a: float, lon_a: float, lat_b: float, lon_b: float) -> int:
    """Degrees from north, clockwise; over distances of a city the earth is flat."""
    east = (lon_b - lon_a) * math.cos(math.radians((lat_a + lat_b) / 2))
    return round(math.degrees(math.atan2(east, lat_b - lat_a))) % 360


# --- telling
def value_of(told: Told) -> bytes | None:
    """What the topic gets; None forgets the key there too."""
    if told.kind == "car":
        return None if told.state is None else _json(_car_view(told.car, told.state))
    known: Mapping[str, Any] = {} if told.state is None else {"lat": told.state.lat, "lon": told.state.lon}
    return _json({"what": told.kind, "car": told.car, "at": told.at_ms, **known})


def _car_view(name: str, car: Car) -> dict[str, Any]:
    moving = "moving" if (car.kmh or 0) >= STANDING_KMH else "standing"
    return {
        "car": name,
        "at": car.at_ms,
        "lat": car.lat,
        "lon": car.lon,
        "kmh": car.kmh,
        "heading": car.heading,
        "state": "silent" if car.silent else moving,
        "reports": car.reports,
        "late": car.late,
    }
