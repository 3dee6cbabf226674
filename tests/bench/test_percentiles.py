from bench.percentiles import percentiles


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentiles([float(n) for n in range(1000, 0, -1)]) == {"p50": 501.0, "p99": 991.0, "p99.9": 1000.0}


def test_one_value_is_every_percentile() -> None:
    assert set(percentiles([7.0]).values()) == {7.0}
