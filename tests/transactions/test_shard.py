"""What each verb answers in each state, to each producer, of clients of both ages; and what it leaves behind."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.transactions.rig import ID, T0, TIMEOUT_MS, Rig, shown, who

from runnel.model.calls import Nothing
from runnel.model.ids import ProducerId
from runnel.model.partition_sets import grouped
from runnel.model.sinks import Finish, Finished, Handle, Hold
from runnel.transactions.records import Transaction
from runnel.transactions.values import NOBODY, Cause, State

WALL_MS = 1_000_000


def stands(
    state: State, producer: str, previous: str = "", *, version: int = 1, cause: Cause = Cause.CLIENT, next_id: int = -1
) -> Transaction:
    now, was = who(producer), who(previous)
    runs = state.running
    return Transaction(
        state, now.producer_id, now.epoch, TIMEOUT_MS, WALL_MS, was.producer_id, was.epoch, ProducerId(next_id),
        grouped([T0]) if runs else (), WALL_MS if state is not State.EMPTY else -1, version, cause,
    )  # fmt: skip


# Producer 1 wrote in epoch 5; where the end of a transaction ends an epoch, it is in 6 now.
STATES: dict[str, Transaction | None] = {
    "unknown": None,
    "empty": stands(State.EMPTY, "1:5"),
    "renewed": stands(State.EMPTY, "1:6", "1:5"),  # by the producer itself (KIP-360)
    "ongoing": stands(State.ONGOING, "1:5"),
    "ongoing-2": stands(State.ONGOING, "1:6", "1:5", version=2),  # its second transaction
    "held": replace(stands(State.ONGOING, "1:5"), holder="s"),
    "committing": stands(State.PREPARE_COMMIT, "1:5"),
    "aborting": stands(State.PREPARE_ABORT, "1:5"),
    "committing-2": stands(State.PREPARE_COMMIT, "1:6", "1:5", version=2),
    "aborting-2": stands(State.PREPARE_ABORT, "1:6", "1:5", version=2),
    "fencing": stands(State.PREPARE_ABORT, "1:6", version=2, cause=Cause.FENCED),
    "timing-out": stands(State.PREPARE_ABORT, "1:6", "1:5", version=2, cause=Cause.TIMED_OUT),
    "publishing": stands(State.PREPARE_COMMIT, "1:6", version=2, cause=Cause.SINK),
    "committed": stands(State.COMPLETE_COMMIT, "1:5"),
    "aborted": stands(State.COMPLETE_ABORT, "1:5"),
    "committed-2": stands(State.COMPLETE_COMMIT, "1:6", "1:5", version=2),
    "aborted-2": stands(State.COMPLETE_ABORT, "1:6", "1:5", version=2),
    "published": stands(State.COMPLETE_COMMIT, "1:6", version=2, cause=Cause.SINK),
    "fenced": stands(State.COMPLETE_ABORT, "1:6", version=2, cause=Cause.FENCED),
    "timed-out": stands(State.COMPLETE_ABORT, "1:6", "1:5", version=2, cause=Cause.TIMED_OUT),
    # its last epoch, and the one above, which fenced it
    "last": stands(State.ONGOING, "1:32766"),
    "last-held": replace(stands(State.ONGOING, "1:32766"), holder="s"),
    "last-empty": stands(State.EMPTY, "1:32766"),
    "last-aborting": stands(State.PREPARE_ABORT, "1:32767", "1:32766", version=2, next_id=9),
    "last-fenced": stands(State.COMPLETE_ABORT, "1:32767", version=2, cause=Cause.FENCED),
    "last-timed-out": stands(State.COMPLETE_ABORT, "1:32767", "1:32766", version=2, cause=Cause.TIMED_OUT),
    "rotated": stands(State.COMPLETE_ABORT, "9:0", "1:32766", version=2),
}


def do(rig: Rig, verb: str) -> str:
    """`init 1:5`, `add 1:5`, `verify 1:5`, `commit 1:5` (v1), `commit2 1:5` (v2), `abort`, `abort2`, `marked`; of a
    sink: `hold 1:5`, `publish 1:5`, `quash 1:5` (abort, held or not), `drop 1:5` (abort, unless it is held)."""
    name, _, producer = verb.partition(" ")
    match name:
        case "init":
            return shown(rig.init(producer))
        case "add":
            return shown(rig.add(producer, "t/0"))
        case "add-other":
            return shown(rig.add(producer, "t/1"))
        case "verify":
            return shown(rig.add(producer, "t/0", verify=True))
        case "verify-other":
            return shown(rig.add(producer, "t/1", verify=True))
        case "marked":
            rig.mark()
            return "ok"
        case "hold":
            return said(rig.ask("hold", Hold("s", Handle(ID, *who(producer)))))
        case "publish" | "quash" | "drop":
            handle = Handle(ID, *who(producer))
            return said(rig.ask("finish", Finish("s", handle, name == "publish", name != "drop")))
    commit, bumps = name.startswith("commit"), name.endswith("2")
    return shown(rig.end(producer, commit=commit, bumps=bumps))


def said(answer: Any) -> str:
    """What a sink is told: `ends`: ask again, `over`: every partition knows; + if it was committed."""
    if isinstance(answer, Finished):
        return ("over" if answer.complete else "ends") + "+" * answer.committed
    return "ok" if answer == Nothing() else shown(answer)


def stand(rig: Rig) -> str:
    state = rig.state()
    if state is None:
        return "unknown"
    previous = "" if state.previous == NOBODY else f" was {shown(state.previous)}"
    holder = f" held by {state.holder}" if state.holder else ""
    return f"{state.state.label} {shown(state.identity)}{previous}{holder}"


SHORT = {
    "ProducerFenced": "F",
    "ConcurrentTransactions": "C",
    "InvalidTransactionState": "S",
    "TransactionAbortable": "A",
    "InvalidProducerMapping": "M",
}
VERBS = (
    "init-new", "init", "add", "add-other", "verify", "verify-other", "commit", "abort", "commit2", "abort2",
    "hold", "publish", "quash", "drop", "marked",
)  # fmt: skip
USUAL = ("1:4", "1:5", "1:6", "2:5")
LAST = ("1:32766", "1:32767", "9:0")
TABLE = Path(__file__).with_name("table.txt").read_text().splitlines()
ROWS = [line for line in TABLE if line and not line.startswith("#")]


def answer(state: str, verb: str) -> str:
    """What is said, and what is written, if anything."""
    rig = Rig(STATES[state])
    known = len(rig.log)
    said = do(rig, verb)
    written = f" => {stand(rig)}" if len(rig.log) > known else ""
    return SHORT.get(said, said) + written


def row(state: str, verb: str) -> str:
    """A line of the table: the answers to everybody who may ask."""
    if verb in ("init-new", "marked"):
        return f"{state} {verb}: {answer(state, verb.removesuffix('-new'))}"
    everybody = LAST if state.startswith(("last", "rotated")) else USUAL
    return f"{state} {verb}: " + " | ".join(f"{each} {answer(state, f'{verb} {each}')}" for each in everybody)


@pytest.mark.parametrize("line", ROWS)
def test_every_verb_in_every_state_and_for_everybody(line: str) -> None:
    state, verb = line.partition(":")[0].split()
    assert row(state, verb) == line


def test_the_table_leaves_nothing_out() -> None:
    asked = [tuple(line.partition(":")[0].split()) for line in ROWS]
    assert asked == [(state, verb) for state in STATES for verb in VERBS]
