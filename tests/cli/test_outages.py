"""What is said while a broker is away."""

import signal
import subprocess
from pathlib import Path

from tests.cli.calls import COMMAND, process

from runnel.testing.process import BrokerProcess


def test_who_waits_for_a_broker_learns_it_once_in_each_outage(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        process(broker.kafka, "produce", "t", "-m", "one")
        with subprocess.Popen(
            [*COMMAND, "consume", "t", "-b", broker.kafka], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            assert running.stdout.readline() == b"one\n"
            for _ in range(2):
                broker.kill()
                told = running.stderr.readline().decode()
                assert told.startswith(f"Still waiting: broker {broker.kafka} can't be reached (connection refused)")
                broker.start()
                process(broker.kafka, "produce", "t", "-m", "again")
                assert running.stdout.readline() == b"again\n"
            running.send_signal(signal.SIGINT)
            assert (running.wait(30), running.stderr.read()) == (130, b"")
