from bench.report import OURS, Line, Sample, complete, lines_of, shown, table


def samples(contender: str, *values: float, metric: str = "produce") -> list[Sample]:
    return [Sample("s", "1 KB", metric, "MB/s", contender, number, value) for number, value in enumerate(values, 1)]


def line(**values: list[float]) -> Line:
    [made] = lines_of(sample for name, found in values.items() for sample in samples(name, *found))
    return made


def test_a_line_gathers_all_rounds_of_all_contenders() -> None:
    made = line(runnel=[1.0, 2.0, 9.0], kafka=[4.0])
    assert made.values == {"runnel": {1: 1.0, 2: 2.0, 3: 9.0}, "kafka": {1: 4.0}}
    assert made.median("runnel") == 2.0
    assert made.median("nats") is None


def test_spread_is_half_the_range_over_the_median() -> None:
    assert line(runnel=[8.0, 10.0, 14.0]).spread("runnel") == 0.3


def test_a_ratio_is_taken_round_by_round() -> None:
    # Both were three times slower in round 2: the ratio does not move.
    assert line(runnel=[30.0, 10.0, 30.0], kafka=[60.0, 20.0, 60.0]).ratio("kafka") == 0.5


def test_a_ratio_uses_only_the_rounds_both_took_part_in() -> None:
    assert line(runnel=[30.0, 10.0], kafka=[15.0]).ratio("kafka") == 2.0
    assert line(runnel=[30.0]).ratio("kafka") is None
    assert line(runnel=[30.0], kafka=[0.0]).ratio("kafka") is None


def test_numbers_show_three_digits_that_count() -> None:
    assert [shown(value, None) for value in (12345.6, 123.4, 12.34, 1.234, 0.1234)] == [
        "12,346", "123", "12.3", "1.23", "0.123",
    ]  # fmt: skip
    assert shown(100.0, 0.25) == "100 ±25%"
    assert shown(None, None) == "-"


def test_the_table_names_what_is_missing() -> None:
    lines = lines_of([*samples(OURS, 10.0), *samples("kafka", 5.0), *samples(OURS, 3.0, metric="consume")])
    assert table(lines, ["limit", OURS, "kafka"]).splitlines() == [
        "case  metric          runnel     kafka  runnel/kafka",
        "1 KB  produce MB/s  10.0 ±0%  5.00 ±0%          2.00",
        "1 KB  consume MB/s  3.00 ±0%         -             -",
    ]


def test_a_table_is_complete_when_every_line_has_a_value() -> None:
    lines = lines_of([*samples(OURS, 10.0), *samples("kafka", 5.0, metric="consume")])
    assert complete(lines[:1], [OURS])
    assert not complete(lines, [OURS])
    assert not complete([], [OURS])
