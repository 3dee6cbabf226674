"""Each example runs as its first lines say, and shows what it promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runnel.testing.process import BrokerProcess

EXAMPLES = Path(__file__).parents[1] / "examples"

SHOWS = {  # how many messages a poll brings is not promised, so neither is how many are lost or done twice
    "at_most_once.py": [r"handled \[0, .* 5\], and died", r"lost: \[6.*\]  twice: \[\]"],
    "at_least_once.py": [r"handled \[0, .* 16\], and died", r"lost: \[\]  twice: \[.*16\]"],
    "exactly_once.py": [
        r"the worker died \(exit code 1\): 14 invoices are written, 1?\d are committed",
        r"started again, it finished: 2[1-9] are written, 20 are committed",
        r"each order has exactly one invoice, in order: True",
    ],
    "pace_matching.py": [r"120 requests sent in .* wait in the queue", r"left: 0  each exactly once: True"],
    "retry_and_repair.py": [
        r"booked: 42",
        r"given up after 3 attempts .*: {\"id\":2}",
        r"sent back: 1",
        r"booked: 8, tries: {.*2: 4.*}",
    ],
    "reminders.py": [
        r"waiting: \['pay rent', 'buy milk', 'call mum', 'go to bed'\]",
        r"\npay rent\ncall mum\ngo to bed\nwaiting: 0\n",
        r"too late: ",
    ],
    "publish_and_queue.py": [r"billing saw all in order: True, audit too: True", r"point-to-point: .* each once: True"],
}


@pytest.mark.parametrize("example", sorted(SHOWS))
def test_it_shows_what_it_promises(broker: BrokerProcess, example: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example)],
        env={**os.environ, "RUNNEL_BROKER": broker.kafka},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for pattern in SHOWS[example]:
        assert re.search(pattern, done.stdout), done.stdout


def test_none_is_forgotten() -> None:
    with_spark = {path.name for path in EXAMPLES.glob("*_stream.py")}  # tests/pipelines/spark/test_examples.py
    assert {path.name for path in EXAMPLES.glob("*.py")} - with_spark == set(SHOWS)
