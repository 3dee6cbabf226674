"""How many cars were in each cell of the map in each minute, and how fast; for the whole city too.

Rule 1: a minute is told once, when the watermark has passed its end: what is told is final.
Rule 2: a car counts once in a minute, where it was last; its speed is its way in that minute by the time it took.
Rule 3: all of it is done by Spark's own operators: no row goes through Python.
"""

import math
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from runnel.pipelines.jobs.fleet.track import EARTH_M

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

METRES_PER_DEGREE = math.pi * EARTH_M / 180
WHOLE = "all"  # the cell that is the whole city


def heat(reports: "DataFrame", *, cell_m: int) -> "DataFrame":
    """From reports with a watermark on `at` to key and value of each (minute, cell)."""
    placed = _car_minutes(reports).select("window", "reports", "kmh", *_cell(cell_m))
    twice = F.explode(F.array(F.col("cell"), F.lit(WHOLE)))
    by_cell = placed.withColumn("cell", twice).groupBy(F.window(F.window_time("window"), "1 minute"), "cell")
    return by_cell.agg(
        F.count("*").alias("cars"),
        F.sum("reports").alias("reports"),
        F.round(F.avg("kmh"), 1).alias("kmh"),
        F.first("cell_lat").alias("cell_lat"),
        F.first("cell_lon").alias("cell_lon"),
    ).select(*_message(cell_m))


def _car_minutes(reports: "DataFrame") -> "DataFrame":
    """One row for each car and minute: how many reports, how fast, and where last."""
    point = F.struct("at_ms", "lat", "lon")
    path = F.array_sort(F.collect_list(point)).alias("path")
    gathered = reports.groupBy(F.window("at", "1 minute"), "car").agg(path, F.count("*").alias("reports"))
    last = F.element_at("path", -1)
    took_ms = last["at_ms"] - F.element_at("path", 1)["at_ms"]
    return gathered.select(
        "window",
        "reports",
        F.when(took_ms > 0, 3600 * _length_m(F.col("path")) / took_ms).alias("kmh"),
        last["lat"].alias("lat"),
        last["lon"].alias("lon"),
    )


def _length_m(path: "Column") -> "Column":
    def step(point: "Column", number: "Column") -> "Column":
        before = F.element_at(path, F.greatest(number, F.lit(1)))  # of the first, the first itself
        return _distance_m(before, point)

    return F.aggregate(F.transform(path, step), F.lit(0.0), lambda total, each: total + each)


def _distance_m(a: "Column", b: "Column") -> "Column":
    """Over distances of a city the earth is flat."""
    north = (b["lat"] - a["lat"]) * METRES_PER_DEGREE
    east = (b["lon"] - a["lon"]) * METRES_PER_DEGREE * F.cos(F.radians((a["lat"] + b["lat"]) / 2))
    return F.sqrt(north * north + east * east)


def _cell(cell_m: int) -> list["Column"]:
    """The cell of a place, by row and column of a grid whose cells are `cell_m` wide and high everywhere."""
    row = F.floor(F.col("lat") * METRES_PER_DEGREE / cell_m)
    middle_lat = (row + 0.5) * cell_m / METRES_PER_DEGREE
    width = cell_m / (METRES_PER_DEGREE * F.cos(F.radians(middle_lat)))  # degrees of longitude
    column = F.floor(F.col("lon") / width)
    return [
        F.concat_ws("/", row, column).alias("cell"),
        F.round(middle_lat, 6).alias("cell_lat"),
        F.round((column + 0.5) * width, 6).alias("cell_lon"),
    ]


def _message(cell_m: int) -> list["Column"]:
    minute = F.unix_millis(F.col("window.start"))
    one = F.col("cell") != WHOLE
    body = F.struct(
        minute.alias("minute"),
        "cell",
        F.when(one, F.col("cell_lat")).alias("lat"),
        F.when(one, F.col("cell_lon")).alias("lon"),
        F.when(one, F.lit(cell_m)).alias("metres"),
        "cars",
        "reports",
        "kmh",
    )
    return [F.concat_ws("/", minute, "cell").cast("binary").alias("key"), F.to_json(body).cast("binary").alias("value")]
