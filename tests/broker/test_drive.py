"""A re-drive comes to its end, whatever lies among the letters and whatever breaks."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.broker.serving import serve
from tests.broker.test_deliveries import make, take
from tests.broker.test_leaving import letters, reject

from runnel.broker import drive
from runnel.broker.broker import Broker
from runnel.cluster.topic_rules import NewTopic
from runnel.model.calls import Outgoing, Redrive, RedriveState, RedriveTask, Send

LONG_MS = 60_000
DEEP = b'{"a":' * 3_000 + b"1" + b"}" * 3_000


async def bury(broker: Broker, queue: str, *values: bytes) -> None:
    await broker.queues.send(Send(queue, [Outgoing(value) for value in values]))
    await reject(broker, queue, len(values))
    await letters(broker, f"{queue}.dead", len(values))


async def ended(broker: Broker, queue: str) -> RedriveState:
    while (state := await broker.redrives.status(RedriveTask(queue))).state == "running":
        pass
    return state


def test_letters_that_are_no_json_are_passed_over(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q")
        await bury(broker, "q", b'{"a":1}', b'{"a":"\xff"}', DEEP, b'{"a":2}')
        await broker.redrives.start(Redrive("q", merge='{"b":1}'))
        state = await ended(broker, "q")
        assert (state.state, state.moved, state.skipped) == ("done", 2, 2)
        assert "the dead letter at offset 1 is not JSON" in state.failure
        got = await take(broker, "q", 5, wait_ms=LONG_MS)
        assert [value for value, _ in got] == [b'{"a":1,"b":1}', b'{"a":2,"b":1}']

    serve(tmp_path, scenario)


def test_what_is_asked_for_is_not_closed_before_it_is_answered(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q")
        await bury(broker, "q", b"a", b"b")
        starting = asyncio.ensure_future(broker.redrives.start(Redrive("q")))
        while not starting.done():
            broker.redrives.sweep()
            await asyncio.sleep(0)
        assert starting.result().state == "running"
        assert (await ended(broker, "q")).moved == 2

    serve(tmp_path, scenario)


def test_what_breaks_in_a_way_that_nobody_foresaw_has_failed_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of all things")

    async def scenario(broker: Broker) -> None:
        await make(broker, "q")
        await bury(broker, "q", b"a", b"b")
        with monkeypatch.context() as patch, caplog.at_level(logging.CRITICAL, "runnel.queues"):
            patch.setattr(drive, "going_back", broken)
            await broker.redrives.start(Redrive("q"))
            state = await ended(broker, "q")
        assert (state.state, state.moved, state.failure) == ("failed", 0, "ZeroDivisionError: of all things")
        broker.redrives.sweep()  # it is read again
        assert await ended(broker, "q") == state
        await broker.redrives.start(Redrive("q"))
        assert (await ended(broker, "q")).moved == 2

    serve(tmp_path, scenario)


def test_a_re_drive_that_nobody_works_on_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(*_: object) -> None:
        """Whoever had it does not go on."""

    async def scenario(broker: Broker) -> None:
        await make(broker, "q")
        await bury(broker, "q", b"a", b"b")
        with monkeypatch.context() as patch:
            patch.setattr(drive.Drive, "_run", gone)
            await broker.redrives.start(Redrive("q"))
            assert (await broker.redrives.status(RedriveTask("q"))).state == "running"
        stopping = await broker.redrives.stop(RedriveTask("q"))
        assert (stopping.state, stopping.stopping) == ("running", True)
        assert (await ended(broker, "q")).state in ("stopped", "done")

    serve(tmp_path, scenario)


def test_a_re_drive_into_a_full_queue_waits_for_room_but_not_if_it_is_to_stop(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", max_length="1", overflow="refuse")
        await bury(broker, "q", b"a")
        await broker.queues.send(Send("q", [Outgoing(b"in the way")]))
        await broker.redrives.start(Redrive("q"))
        assert (await broker.redrives.status(RedriveTask("q"))).state == "running"
        await broker.redrives.stop(RedriveTask("q"))
        state = await ended(broker, "q")
        assert (state.state, state.moved, state.skipped) == ("done", 0, 1)
        assert "can't go back" in state.failure
        assert [value for value, _ in await take(broker, "q", 5)] == [b"in the way"]

    serve(tmp_path, scenario)


def test_a_letter_goes_back_however_large_its_headers_made_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create([NewTopic("q", 1, config={"max.message.bytes": "1000"})])
        await make(broker, "q")
        value = b"x" * 850
        await bury(broker, "q", value)
        await broker.redrives.start(Redrive("q", set_headers={"more": "y" * 100}))
        assert (await ended(broker, "q")).skipped == 1  # it is another message: the topic's limit counts
        await broker.redrives.start(Redrive("q"))
        assert (await ended(broker, "q")).moved == 1
        assert [got for got, _ in await take(broker, "q", 5, wait_ms=LONG_MS)] == [value]

    serve(tmp_path, scenario)
