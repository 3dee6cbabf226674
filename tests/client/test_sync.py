"""The client without `async`, against a real broker."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from runnel.client import sync
from runnel.model.errors import RunnelError
from runnel.testing.process import BrokerProcess


def fill(runnel: sync.Runnel, name: str, count: int) -> None:
    """Messages in one partition, as many in one batch as come at once."""
    runnel.queue(name).create(partitions=1)
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(lambda n: runnel.send(name, n), range(count)))


def test_a_commit_in_the_loop_commits_what_was_handed_out_and_no_more(broker: BrokerProcess, name: str) -> None:
    with sync.connect(broker.kafka, linger=0.1) as runnel:
        fill(runnel, name, 10)
        with pytest.raises(ZeroDivisionError):
            commit_each_and_fail_at(runnel, name, 2)
        with runnel.group(name, name) as messages:
            assert next(iter(messages)).offset == 2


def commit_each_and_fail_at(runnel: sync.Runnel, name: str, offset: int) -> None:
    with runnel.group(name, name) as messages:
        for message in messages:
            if message.offset == offset:
                raise ZeroDivisionError
            messages.commit()


def test_the_end_of_the_block_commits_what_was_handed_out(broker: BrokerProcess, name: str) -> None:
    with sync.connect(broker.kafka, linger=0.1) as runnel:
        fill(runnel, name, 6)
        with runnel.group(name, name) as messages:
            for message in messages:
                if message.offset == 2:
                    break
        with runnel.group(name, name) as messages:
            assert next(iter(messages)).offset == 3
            assert next(iter(messages)).offset == 4  # who begins the loop anew goes on


def test_an_exception_commits_nothing(broker: BrokerProcess, name: str) -> None:
    with sync.connect(broker.kafka, linger=0.1) as runnel:
        fill(runnel, name, 3)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                raise_with_one_in_hand(runnel, name)


def raise_with_one_in_hand(runnel: sync.Runnel, name: str) -> None:
    with runnel.group(name, name, member="one") as messages:
        for message in messages:
            assert message.offset == 0
            raise ZeroDivisionError


def test_a_failure_that_was_caught_is_not_raised_again_at_the_end(broker: BrokerProcess, name: str) -> None:
    with sync.connect(broker.kafka) as runnel, pytest.raises(RunnelError):
        runnel.send(name, "x" * 3_000_000)
