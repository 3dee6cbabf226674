import os
from math import sqrt

import pytest

from bench.workers import JobFailed, Worker


def test_a_worker_does_jobs_and_tells_what_went_wrong() -> None:
    worker = Worker()
    try:
        assert worker.run(sqrt, 9.0) == 3.0
        with pytest.raises(JobFailed, match="math domain error"):
            worker.run(sqrt, -1.0)
        assert worker.run(sqrt, 16.0) == 4.0
    finally:
        worker.close()


def test_a_worker_that_dies_is_a_failed_job() -> None:
    worker = Worker()
    try:
        with pytest.raises(JobFailed, match="ended"):
            worker.run(os._exit, 1)
    finally:
        worker.close()
