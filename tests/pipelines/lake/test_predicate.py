"""Which conditions may skip files: those that Spark and the log's reader understand alike."""

import pytest

from runnel.pipelines.lake.predicate import Column, skippers

COLUMNS = [
    Column("topic", "text"), Column("date", "day"), Column("partition", "number"), Column("offset", "number"),
    Column("timestamp", "time"), Column("timestampType", "number"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "used"),
    [
        ("offset >= 5", ['"offset" >= 5']),
        ("`offset` < -2 and topic = 'a'", ['"offset" < -2', "\"topic\" = 'a'"]),
        ("TimestampType = 0", ['"timestampType" = 0']),
        ("offset between 1 and 9 and partition in (1, 2)", ['"offset" BETWEEN 1 AND 9', '"partition" IN ( 1 , 2 )']),
        (
            "(offset < 3 or offset > 9) and not partition = 1",
            ['( "offset" < 3 OR "offset" > 9 )', 'NOT "partition" = 1'],
        ),
        ("offset < 3 or partition > 1", ['"offset" < 3 OR "partition" > 1']),
        ("date = '2026-03-01'", ["\"date\" = '2026-03-01'"]),
        ("timestamp >= '2026-03-01T00:00:00Z'", ["\"timestamp\" >= '2026-03-01T00:00:00Z'"]),
        ("topic is not null", ['"topic" IS NOT NULL']),
    ],
)
def test_what_is_used(where: str, used: list[str]) -> None:
    assert skippers(where, COLUMNS, utc=False) == used


@pytest.mark.parametrize(
    "where",
    [
        "offset < 3 or length(value) > 1",  # an OR with something unknown says nothing
        "cast(key as string) = 'a'",
        "offset = '5'",  # one would compare texts, the other numbers
        "topic = 5",
        "topic = \"a\"",
        "topic = 'it\\'s'",
        "offset > 1.5",
        "date >= 'yesterday'",
        "timestamp >= '2026-03-01 00:00:00'",  # in whose zone?
        "timestamp >= timestamp '2026-03-01 00:00:00'",
        "topic like 'a%'",
        "offset <=> 3",
        "offset + 1 > 3",
        "nothing = 3",
        "offset -- 3",
        "",
    ],
)  # fmt: skip
def test_what_is_not(where: str) -> None:
    assert skippers(where, COLUMNS, utc=False) == []


def test_the_understood_part_of_a_conjunction_is_used() -> None:
    assert skippers("length(value) > 1 AND offset > 3", COLUMNS, utc=False) == ['"offset" > 3']


def test_an_and_below_an_or_is_no_conjunction() -> None:
    """Rows of other topics are wanted, too."""
    assert skippers("partition > 1 OR offset < 3 AND topic = 'a'", COLUMNS, utc=False) == []
    assert skippers("offset < 3 AND topic = 'a' OR partition > 1", COLUMNS, utc=False) == []


def test_times_without_a_zone_are_those_of_utc_if_spark_says_so() -> None:
    assert skippers("timestamp >= '2026-03-01 00:00:00'", COLUMNS, utc=True) != []
    assert skippers("timestamp >= '2026-03-01'", COLUMNS, utc=True) != []
