"""What sinks order, and are told when it is done; the settings they obey."""

from typing import NamedTuple

import msgspec

from runnel.model.errors import RunnelError
from runnel.model.ids import Millis
from runnel.model.sinks import Handle
from runnel.model.step import Record, Reply, Step

HOUR_MS = 60 * 60 * 1000


class SinkConfig(msgspec.Struct, frozen=True):
    attempt_ms_max: int = 24 * HOUR_MS  # what is not published by then is dropped; far beyond any transaction's timeout
    idle_ms_max: int = 24 * HOUR_MS  # until a sink is forgotten that has published nothing, or will publish no more
    check_ms: int = HOUR_MS
    attempts_max: int = 10_000  # that one sink has open at once
    waiters_max: int = 16  # who wait for one batch; the oldest are told to ask again


# --- what is ordered: done for as long as it takes, then told
class OpenSlot(msgspec.Struct, frozen=True, eq=False):
    """Have a new producer for the transactional id of a slot; told with `opened`. Given up after a while."""

    sink: str
    slot: int
    timeout_ms: int


class HoldSlot(msgspec.Struct, frozen=True, eq=False):
    """Have a transaction held; told with `held`."""

    sink: str
    slot: int
    handle: Handle


class FinishSlot(msgspec.Struct, frozen=True, eq=False):
    """Have a transaction ended everywhere; told with `finished`."""

    sink: str
    slot: int
    handle: Handle
    commit: bool
    held: bool  # it may be: else it is dropped only if it is not


# --- what is told
class SlotOpened(NamedTuple):
    order: OpenSlot
    result: Handle | RunnelError
    timeout_ms: int = 0


class SlotHeld(NamedTuple):
    order: HoldSlot
    refused: RunnelError | None = None


class Turn(NamedTuple):
    """A verb under way, with the moment it happens in."""

    wall_ms: Millis
    step: Step

    def reply(self, ticket: object, result: object) -> None:
        self.step.replies.append(Reply(ticket, result))

    def keep(self, record: Record) -> None:
        self.step.records.append(record)

    def order(self, order: object) -> None:
        self.step.orders.append(order)
