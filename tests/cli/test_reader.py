"""Commands whose output another program reads: what counts as handled, and what happens when that program is gone."""

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from tests.cli.calls import COMMAND, Call, process

from runnel.testing.process import BrokerProcess

LIMIT_S = 60
READER_GONE = 141


def fill(call: Call, queue: str, count: int, **settings: str) -> None:
    """A queue with so many messages, which have long leases."""
    call("queue", "create", queue, "--lease", "1h", *(f"-c{key}={value}" for key, value in settings.items()))
    process(os.environ["RUNNEL_BROKER"], "queue", "send", queue, stdin=b"".join(b"%d\n" % n for n in range(count)))


def state(call: Call, queue: str) -> tuple[int, int]:
    """How many messages of a queue were accepted, and how many are leased."""
    described = call("queue", "describe", queue, "--json").json["partitions"]
    return sum(part["accepted"] for part in described), sum(part["leased"] for part in described)


def begin(*arguments: str, stdout: int | IO[bytes] = subprocess.PIPE) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*COMMAND, *arguments], stdout=stdout, stderr=subprocess.PIPE)


def head(of: "subprocess.Popen[bytes]") -> "subprocess.Popen[bytes]":
    """A reader that wants two lines."""
    return subprocess.Popen(["head", "-2"], stdin=of.stdout, stdout=subprocess.DEVNULL)


def ended(running: "subprocess.Popen[bytes]") -> int:
    try:
        return running.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        running.kill()
        raise


# --- queues


def test_a_pipe_accepts_nothing_unless_told_to(call: Call, broker: BrokerProcess, name: str) -> None:
    fill(call, name, 5)
    piped = process(broker.kafka, "queue", "receive", name, "-e")
    assert sorted(piped.stdout.split()) == [b"0", b"1", b"2", b"3", b"4"]
    assert b"stdout is a pipe: messages are printed and not accepted" in piped.stderr
    assert state(call, name) == (0, 5)
    fill(call, f"{name}.told", 5)
    told = process(broker.kafka, "queue", "receive", f"{name}.told", "-e", "--then", "accept")
    assert (len(told.stdout.split()), told.stderr) == (5, b"")
    assert state(call, f"{name}.told") == (5, 0)


def test_a_file_accepts_as_a_terminal_does(call: Call, name: str, tmp_path: Path) -> None:
    fill(call, name, 3)
    with (tmp_path / "out").open("wb") as out, begin("queue", "receive", name, "-e", stdout=out) as receiver:
        assert ended(receiver) == 0
    assert state(call, name) == (3, 0)


@pytest.mark.parametrize("then", [[], ["--then", "accept"]], ids=["by default", "--then accept"])
def test_a_reader_that_ends_gives_back_what_is_not_accepted(call: Call, name: str, then: list[str]) -> None:
    fill(call, name, 300)
    with begin("queue", "receive", name, *then) as receiver, head(receiver):
        assert receiver.stdout is not None
        receiver.stdout.close()  # ours: `head` has its own
        assert ended(receiver) == READER_GONE
    accepted, leased = state(call, name)
    assert leased == 0  # others can have them at once
    assert accepted == 0 or then


def test_a_reader_that_ends_leaves_the_leases_that_were_to_be_kept(call: Call, name: str) -> None:
    fill(call, name, 3)
    with begin("queue", "receive", name, "--then", "nothing", "--json") as receiver:
        assert receiver.stdout is not None
        receipts = [json.loads(receiver.stdout.readline())["receipt"] for _ in range(3)]
        receiver.stdout.close()
        assert ended(receiver) == READER_GONE
    assert state(call, name) == (0, 3)
    call("queue", "settle", name, *receipts)
    assert state(call, name) == (3, 0)


def test_what_the_reader_has_settled_stays_settled(call: Call, name: str) -> None:
    fill(call, name, 3)
    with begin("queue", "receive", name, "--json") as receiver:
        assert receiver.stdout is not None
        receipts = [json.loads(receiver.stdout.readline())["receipt"] for _ in range(3)]
        call("queue", "settle", name, *receipts[:2])
        receiver.stdout.close()
        assert ended(receiver) == READER_GONE
    assert state(call, name) == (2, 0)


def pipe() -> tuple[IO[bytes], Callable[[], None]]:
    read, write = os.pipe()
    return os.fdopen(write, "wb"), lambda: os.close(read)


def pair_of_sockets() -> tuple[IO[bytes], Callable[[], None]]:
    """Some programs start others like this."""
    ours, theirs = socket.socketpair()
    return os.fdopen(theirs.detach(), "wb"), ours.close


@pytest.mark.parametrize("made", [pipe, pair_of_sockets])
@pytest.mark.parametrize("command", ["queue receive", "consume", "consume -g g"])
def test_a_reader_that_is_gone_is_noticed_while_nothing_comes(
    call: Call, name: str, command: str, made: Callable[[], tuple[IO[bytes], Callable[[], None]]]
) -> None:
    call("queue", "create", name)
    out, leave = made()
    first, *more = command.split()
    words = [first, *more, name] if first == "queue" else [first, name, *more]
    with out, begin(*words, stdout=out) as waiting:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(2.0)  # it goes on for as long as somebody may read
        leave()
        assert ended(waiting) == READER_GONE


# --- groups


def test_a_group_does_not_commit_for_a_reader_that_is_gone(call: Call, broker: BrokerProcess, name: str) -> None:
    process(broker.kafka, "produce", name, stdin=b"".join(b"%d\n" % n for n in range(1_000)))
    with begin("consume", name, "-g", name) as consumer, head(consumer):
        assert consumer.stdout is not None
        consumer.stdout.close()
        assert ended(consumer) == READER_GONE
    assert len(process(broker.kafka, "consume", name, "-g", name, "-e").stdout.split()) == 1_000
