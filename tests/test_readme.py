"""The first programs of README and the guide run as they are pasted."""

import re
import subprocess
import sys
from pathlib import Path

from runnel.client import sync
from runnel.testing.process import BrokerProcess

ROOT = Path(__file__).parents[1]


def program(page: str, holding: str) -> str:
    """The one block of Python on a page that holds a text."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    [found] = [block for block in blocks if holding in block]
    return str(found)


def test_the_worker_of_the_readme_goes_on_after_a_message_that_fails(broker: BrokerProcess) -> None:
    code = program("README.md", "jobs.messages()").replace("127.0.0.1:9092", broker.kafka)
    with sync.connect(broker.kafka) as runnel:
        jobs = runnel.queue("jobs")
        jobs.create(attempts_max=3, retry_backoff_ms=1)
        jobs.send("no JSON")
        with subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            told = [worker.stdout.readline() for _ in range(3)]
            assert all(
                re.match(f"attempt {n + 1} failed: the value of the message", line) for n, line in enumerate(told)
            )
            assert worker.stdout.readline() == "{'pay': 30}\n"  # which comes 5 s after it was sent
            worker.kill()
        [letter] = jobs.dead_letters()
        assert letter.reason.startswith("InvalidRecord: the value of the message")
