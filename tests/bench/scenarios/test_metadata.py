from bench.load.librdkafka import Acked
from bench.report import Sample
from bench.scenarios import Cell
from bench.scenarios.metadata import WATCHED, record_waits


def test_a_partition_is_judged_by_its_longest_wait_around_the_event() -> None:
    samples: list[Sample] = []
    quick = [Acked(partition, 100.0, 0.01) for partition in range(WATCHED)]
    slow = [Acked(0, 100.2, 3.0), Acked(0, 100.3, 2.9), Acked(1, 100.2, 1.0)]
    before = [Acked(2, 90.0, 60.0)]  # when the client began: no part of what is measured
    record_waits(Cell(samples, "s", "c", "runnel", 1), [*before, *quick, *slow], event=100.0)
    assert [sample.value for sample in samples] == [0.01, 3.0]
