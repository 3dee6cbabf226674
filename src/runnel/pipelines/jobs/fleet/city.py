"""A city to drive in: a net of streets in a box, with main roads and a river that few bridges cross.

Rule 1: the same seed gives the same city.
Rule 2: every crossing that has a street has two at least: whoever comes can go on.
"""

import math
from collections import Counter
from dataclasses import dataclass
from random import Random

CENTRE_LAT, CENTRE_LON = 52.5200, 13.4050
WIDTH_M, HEIGHT_M = 15_000, 11_000
COLUMNS, ROWS = 49, 37
MAIN_EVERY = 4  # each fourth street is a main road
MAIN_KMH, SIDE_KMH = 55.0, 32.0
DROPPED = 0.18  # of side streets, so that blocks differ in size
METRES_PER_DEGREE = 111_320.0  # of latitude


@dataclass(frozen=True, slots=True)
class Street:
    """One side of a street: from a crossing to the next."""

    end: int
    length_m: float
    kmh: float
    main: bool


@dataclass(frozen=True, slots=True)
class City:
    places: tuple[tuple[float, float], ...]  # of crossings: metres east and north of the centre
    streets: tuple[tuple[Street, ...], ...]  # from each crossing; none from those out of town


def city(seed: int) -> City:
    """Lay out the streets."""
    chance = Random(f"city {seed}")
    places = tuple(_place(chance, column, row) for row in range(ROWS) for column in range(COLUMNS))
    kept = _kept(places, chance)
    streets: list[list[Street]] = [[] for _ in places]
    for a, b, main in kept:
        length = math.dist(places[a], places[b])
        kmh = MAIN_KMH if main else SIDE_KMH
        streets[a].append(Street(b, length, kmh, main))
        streets[b].append(Street(a, length, kmh, main))
    return City(places, tuple(tuple(each) for each in streets))


def _place(chance: Random, column: int, row: int) -> tuple[float, float]:
    """A crossing: near its place in a grid, which is bent towards the centre."""
    east = (column / (COLUMNS - 1) - 0.5) * WIDTH_M
    north = (row / (ROWS - 1) - 0.5) * HEIGHT_M
    bend = 1 - 0.18 * math.exp(-((east / 4_500) ** 2 + (north / 3_500) ** 2))
    shift = 0.22 * WIDTH_M / COLUMNS
    return east * bend + chance.uniform(-shift, shift), north * bend + chance.uniform(-shift, shift)


def _pairs() -> list[tuple[int, int, bool]]:
    """Neighbours in the grid, and whether a main road joins them."""
    pairs = []
    for row in range(ROWS):
        for column in range(COLUMNS):
            here = row * COLUMNS + column
            if column + 1 < COLUMNS:
                pairs.append((here, here + 1, row % MAIN_EVERY == 0))
            if row + 1 < ROWS:
                pairs.append((here, here + COLUMNS, column % MAIN_EVERY == 0))
    return pairs


def _under_water(places: tuple[tuple[float, float], ...], pair: tuple[int, int, bool]) -> bool:
    """Whether a street would cross the river where there is no bridge: only each second main road has one."""
    a, b, main = pair
    (east_a, north_a), (east_b, north_b) = places[a], places[b]
    crosses = (north_a < _river(east_a)) != (north_b < _river(east_b))
    return crosses and not (main and (a % COLUMNS) % (2 * MAIN_EVERY) == 0)


def _river(east: float) -> float:
    return 900 * math.sin(east / 2_300) - 0.12 * east - 400


def _kept(places: tuple[tuple[float, float], ...], chance: Random) -> list[tuple[int, int, bool]]:
    """The streets in town, without those over water and without some of the side streets; rule 2."""
    pairs = _without_ends([pair for pair in _pairs() if all(_in_town(places[end]) for end in pair[:2])])
    degree = Counter(place for a, b, _ in pairs for place in (a, b))
    kept = []
    for a, b, main in pairs:
        dropped = _under_water(places, (a, b, main)) or (not main and chance.random() < DROPPED)
        if dropped and min(degree[a], degree[b]) > 2:
            degree[a], degree[b] = degree[a] - 1, degree[b] - 1
        else:
            kept.append((a, b, main))
    return kept


def _in_town(place: tuple[float, float]) -> bool:
    """Within an outline that is neither round nor square."""
    east, north = place[0] / (WIDTH_M / 2), place[1] / (HEIGHT_M / 2)
    angle = math.atan2(north, east)
    return math.hypot(east, north) < 0.98 + 0.09 * math.sin(3 * angle + 1) + 0.05 * math.cos(5 * angle)


def _without_ends(pairs: list[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]:
    """Take out streets that end nowhere, until none does."""
    while True:
        degree = Counter(place for a, b, _ in pairs for place in (a, b))
        left = [(a, b, main) for a, b, main in pairs if min(degree[a], degree[b]) >= 2]
        if len(left) == len(pairs):
            return left
        pairs = left


def degrees(east_m: float, north_m: float) -> tuple[float, float]:
    """Latitude and longitude, to about a metre."""
    lon = east_m / (METRES_PER_DEGREE * math.cos(math.radians(CENTRE_LAT)))
    return round(CENTRE_LAT + north_m / METRES_PER_DEGREE, 5), round(CENTRE_LON + lon, 5)
