"""The keeper: what was written last in the newest session is kept, and nobody else's word counts."""

from contextlib import suppress
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.model.calls import Nothing
from runnel.model.errors import FencedEpoch, InvalidRequest, NotCoordinator, RecordUnreadable
from runnel.model.ids import Millis, PartitionKey, TopicId
from runnel.model.internal_calls import Forgotten, KeeperForget, KeeperOpen, KeeperWrite, Kept
from runnel.model.step import Step
from runnel.queues.keeper import KeeperShard, owner_name, owner_parts

TOPIC, OTHER_TOPIC = TopicId(UUID(int=7)), TopicId(UUID(int=8))
OWNER = owner_name("q", PartitionKey(TOPIC, 0))
NOW = Millis(0)


class Log:
    """A machine, and the compacted log of what it decided."""

    def __init__(self) -> None:
        self.machine = KeeperShard()
        self.records: dict[bytes, bytes] = {}
        self.deleted: set[TopicId] = set()

    def ask(self, verb: str, request: Any) -> Any:
        step: Step = getattr(self.machine, verb)(request, "ticket", self.deleted, NOW, NOW)
        self.append(step)
        [reply] = step.replies
        if reply.error is not None:
            raise reply.error
        return reply.result

    def append(self, step: Step) -> None:
        for key, value in step.records:
            if value is None:
                self.records.pop(key, None)
            else:
                self.records[key] = value

    def restart(self) -> None:
        self.machine = KeeperShard()
        for key, value in self.records.items():
            self.machine.replay(key, value)
        self.append(self.machine.wake(self.deleted, NOW, NOW))

    def open(self, epoch: int, session: int = 0, owner: str = OWNER, made: int = 0) -> Kept:
        kept: Kept = self.ask("open", KeeperOpen(owner, epoch, session, made))
        return kept

    def write(self, epoch: int, session: int, *records: tuple[bytes, bytes | None], owner: str = OWNER) -> None:
        assert self.ask("write", KeeperWrite(owner, epoch, session, list(records))) == Nothing()

    def forget(self, queue: str, made: int = 0) -> int:
        forgotten: Forgotten = self.ask("forget", KeeperForget(queue, 0, made=made))
        return forgotten.owners


@pytest.mark.parametrize("restart", [False, True])
def test_who_opens_gets_what_was_written(restart: bool) -> None:
    log = Log()
    first = log.open(3)
    assert first.records == []
    log.write(3, first.session, (b"mark", b"1"), (b"chunk", b"x"))
    log.write(3, first.session, (b"mark", b"2"), (b"chunk", None))
    if restart:
        log.restart()
    assert log.open(4).records == [(b"mark", b"2")]


@pytest.mark.parametrize("restart", [False, True])
def test_an_old_leader_neither_writes_nor_opens(restart: bool) -> None:
    log = Log()
    old = log.open(3)
    log.open(4)
    if restart:
        log.restart()
    with pytest.raises(FencedEpoch, match="epoch 4"):
        log.write(3, old.session, (b"mark", b"old"))
    with pytest.raises(FencedEpoch, match="epoch 4"):
        log.open(3)
    with pytest.raises(FencedEpoch):
        log.open(3, old.session)
    assert log.open(4).records == []


def test_a_leader_that_did_not_open_does_not_write() -> None:
    log = Log()
    kept = log.open(3)
    with pytest.raises(FencedEpoch):
        log.write(4, kept.session, (b"mark", b"1"))
    with pytest.raises(FencedEpoch, match="not kept"):
        log.write(4, 1, (b"mark", b"1"), owner=owner_name("other", PartitionKey(TOPIC, 0)))


@pytest.mark.parametrize("restart", [False, True])
def test_a_write_that_was_under_way_when_its_owner_opened_again_is_void(restart: bool) -> None:
    log = Log()
    first = log.open(3)
    log.write(3, first.session, (b"mark", b"1"))
    second = log.open(3, first.session)
    assert second.records == [(b"mark", b"1")]
    if restart:
        log.restart()
    with pytest.raises(NotCoordinator, match="opened again"):
        log.write(3, first.session, (b"mark", b"late"))
    log.write(3, second.session, (b"mark", b"2"))
    assert log.open(3).records == [(b"mark", b"2")]


@pytest.mark.parametrize("restart", [False, True])
def test_what_was_forgotten_is_not_brought_back_by_who_still_believes_in_it(restart: bool) -> None:
    log = Log()
    kept = log.open(3)
    log.write(3, kept.session, (b"mark", b"1"))
    other = log.open(1, owner=owner_name("q/more", PartitionKey(TOPIC, 0)))
    assert log.forget("q") == 1
    if restart:
        log.restart()
    with pytest.raises(FencedEpoch, match="not kept"):
        log.write(3, kept.session, (b"mark", b"2"))
    with pytest.raises(FencedEpoch, match="not kept"):
        log.open(3, kept.session)
    again = log.open(3)
    assert again.records == []
    with pytest.raises(NotCoordinator):
        log.write(3, kept.session, (b"mark", b"late"))  # of the queue that had this name before
    with pytest.raises(FencedEpoch):
        log.open(3, 99)
    log.write(1, other.session, (b"mark", b"1"), owner=owner_name("q/more", PartitionKey(TOPIC, 0)))


def test_what_was_kept_of_one_topic_can_be_forgotten_alone() -> None:
    log = Log()
    log.open(1)
    log.open(1, owner=owner_name("q", PartitionKey(OTHER_TOPIC, 0)))
    log.open(1, owner=owner_name("other", PartitionKey(OTHER_TOPIC, 0)))
    forgotten: Forgotten = log.ask("forget", KeeperForget("q", 0, OTHER_TOPIC))
    assert forgotten.owners == 1
    assert log.forget("q") == 1
    assert log.forget("other") == 1


@pytest.mark.parametrize("restart", [False, True])
def test_who_forgets_a_queue_late_takes_nothing_from_the_next_of_its_name(restart: bool) -> None:
    log = Log()
    kept = log.open(1, made=7)
    log.write(1, kept.session, (b"mark", b"1"))
    if restart:
        log.restart()
    assert log.forget("q", made=3) == 0
    assert log.open(1, made=7).records == [(b"mark", b"1")]
    assert log.forget("q", made=7) == 1


def test_forgetting_leaves_next_to_nothing_in_the_log() -> None:
    log = Log()
    for number in range(50):
        owner = owner_name("q", PartitionKey(TOPIC, number))
        log.write(3, log.open(3, owner=owner).session, (b"mark", b"1"), owner=owner)
    assert log.forget("q") == 50
    assert len(log.records) == 1
    assert log.forget("q") == 0


def test_what_belonged_to_a_deleted_topic_is_taken_out() -> None:
    log = Log()
    other = owner_name("q", PartitionKey(OTHER_TOPIC, 0))
    for owner in (OWNER, other):
        log.write(3, log.open(3, owner=owner).session, (b"mark", b"1"), owner=owner)
    log.append(log.machine.topic_deleted(TOPIC, log.deleted, NOW, NOW))
    assert log.open(9).records == []
    assert log.open(9, owner=other).records == [(b"mark", b"1")]
    log.deleted.add(OTHER_TOPIC)  # while nobody led
    log.restart()
    assert log.open(9, owner=other).records == []


def test_records_of_newer_brokers_are_left_alone() -> None:
    log = Log()
    log.machine.replay(b"\x92\x7f\xa1x", b"?")
    assert log.open(1).records == []


def test_a_shape_of_a_newer_broker_is_refused() -> None:
    with pytest.raises(RecordUnreadable, match="newer"):
        KeeperShard().replay(msgspec.msgpack.encode((1, OWNER)), b"\x93\x02\x01\x01")


MALFORMED = ["p0", "", "q/7/0", f"q/{TOPIC}", f"q/{TOPIC}/x", f"q/{TOPIC}/-1", f"q/{TOPIC}/1_0", f"q/{TOPIC.hex}/0"]


@pytest.mark.parametrize("owner", MALFORMED)
def test_a_malformed_owner_changes_nothing_however_often_it_asks(owner: str) -> None:
    log = Log()
    log.open(1)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="is no owner"):
            log.open(1 << 40, owner=owner)
    log.restart()
    assert log.open(1).records == []
    assert len(log.records) == 1


FOREIGN: list[tuple[bytes, bytes | None]] = [
    *((msgspec.msgpack.encode((1, owner)), b"\x93\x01\x01\x01") for owner in MALFORMED),
    *((msgspec.msgpack.encode((2, owner, b"k")), b"v") for owner in MALFORMED),
    (msgspec.msgpack.encode((2, OWNER)), b"v"),
    (msgspec.msgpack.encode((2, OWNER, "k")), b"v"),
    (msgspec.msgpack.encode((1, 7)), b"v"),
    (msgspec.msgpack.encode((1, OWNER)), b"no holder"),
    (msgspec.msgpack.encode((3,)), b"nothing forgotten"),
    (msgspec.msgpack.encode([]), None),
    (msgspec.msgpack.encode("text"), b""),
    (b'{"key": "of a foreign record"}', b""),
    (b"\xc1", None),
    (b"\x91" * 5_000, b""),
    (b"", b""),
]


@pytest.mark.parametrize(("key", "value"), FOREIGN)
def test_a_foreign_record_is_refused_and_costs_no_owner_its_rights(key: bytes, value: bytes | None) -> None:
    log = Log()
    first = log.open(3)
    log.write(3, first.session, (b"mark", b"1"))
    machine = KeeperShard()
    for record in log.records.items():
        machine.replay(*record)
    with pytest.raises(RecordUnreadable):
        machine.replay(key, value)
    log.machine = machine
    with pytest.raises(FencedEpoch):
        log.open(2)
    second = log.open(3)
    assert second.records == [(b"mark", b"1")]
    assert second.session > first.session


def test_no_session_comes_twice_where_the_record_of_a_holder_was_set_aside() -> None:
    log = Log()
    old = [log.open(3).session for _ in range(5)]
    machine = KeeperShard()
    with pytest.raises(RecordUnreadable):
        machine.replay(next(iter(log.records)), b"not readable any more")
    log.machine = machine
    assert log.open(3).session > max(old)


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_garbage_is_refused_and_nothing_else(key: bytes, value: bytes | None) -> None:
    with suppress(RecordUnreadable):
        KeeperShard().replay(key, value)


@given(st.text(max_size=20), st.integers(0, 1_000))
def test_an_owner_tells_its_queue_and_topic(queue: str, number: int) -> None:
    assert owner_parts(owner_name(queue, PartitionKey(TOPIC, number))) == (queue, TOPIC)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 4)),
        st.tuples(st.just("write"), st.integers(0, 5), st.sampled_from([b"a", b"b"]), st.sampled_from([None, b"1"])),
        st.tuples(st.just("restart")),
        st.tuples(st.just("forget")),
    ),
    max_size=30,
)  # fmt: skip


@given(STEPS)
def test_only_the_last_who_opened_is_heard(steps: list[tuple[Any, ...]]) -> None:
    """Against a model: holders in the order in which they opened; only the last one's writes count."""
    log = Log()
    opened: list[tuple[int, int]] = []
    model: dict[bytes, bytes] = {}
    for step in steps:
        match step:
            case ("open", epoch):
                highest = max((each[0] for each in opened), default=0)
                if epoch < highest:
                    with pytest.raises(FencedEpoch):
                        log.open(epoch)
                else:
                    kept = log.open(epoch)
                    assert dict(kept.records) == model
                    opened.append((epoch, kept.session))
            case ("write", which, key, value) if opened:
                writer = opened[which % len(opened)]
                if writer is opened[-1]:
                    log.write(*writer, (key, value))
                    model.pop(key, None)
                    if value is not None:
                        model[key] = value
                else:
                    with pytest.raises((FencedEpoch, NotCoordinator)):
                        log.write(*writer, (key, b"stale"))
            case ("restart",):
                log.restart()
            case ("forget",):
                log.forget("q")
                for epoch, session in opened:
                    with pytest.raises(FencedEpoch):
                        log.write(epoch, session, (b"a", b"stale"))
                opened, model = [], {}
