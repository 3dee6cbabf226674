from runnel.broker.creation_rate import CreationRate


def test_some_at_once_and_then_so_many_a_second() -> None:
    rate = CreationRate(5)
    assert rate.take(30, 100.0) == 30
    assert rate.take(1_500, 100.0) == 20
    assert rate.take(1, 100.1) == 0
    assert rate.take(10, 101.1) == 5
    assert rate.take(1_500, 1_000.0) == 50
