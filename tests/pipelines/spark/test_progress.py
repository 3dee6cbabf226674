"""How far a batch job is, with a real Spark."""

from collections.abc import Iterable
from threading import Event

from pyspark.sql import SparkSession

from runnel.pipelines.progress import Tasks, watching


def test_the_tasks_of_a_batch_job_are_told_while_it_runs(spark: SparkSession) -> None:
    told: list[Tasks] = []
    seen = Event()

    def tell(tasks: Tasks) -> None:
        told.append(tasks)
        seen.set()

    def slow(numbers: Iterable[int]) -> Iterable[int]:
        import time

        time.sleep(0.5)
        yield from numbers

    context = spark.sparkContext
    with watching(context.statusTracker(), tell, every_s=0.05):
        while not seen.is_set():
            assert context.parallelize(range(8), 4).mapPartitions(slow).count() == 8
    assert all(0 <= tasks.done <= tasks.all == 4 for tasks in told)
