"""Clients of a simulation that send messages for later, and change their minds.

A message that has a name is sent again under it until somebody says that it is kept. What may have been sent twice is
left alone; of the others some are cancelled or moved, around the time when they are due. A message counts as unknown
until it is acknowledged, and again from when it is to be cancelled until that is answered: then it certainly comes, or
certainly does not.
"""

import asyncio
from collections.abc import Awaitable

from runnel.client.calls import call
from runnel.client.cluster import Cluster
from runnel.client.outcome import error_of_failure
from runnel.model.calls import (
    MESSAGE_SEND,
    SCHEDULE_CANCEL,
    SCHEDULE_MOVE,
    Cancel,
    Move,
    Outgoing,
    Placed,
    Rescheduled,
    SendTo,
)
from runnel.model.errors import NotPending, RunnelError
from runnel.testing.clock import BEGIN_WALL_MS
from runnel.testing.history import NEVER, Reminder, Send, Status
from runnel.testing.reminders import REMINDERS, Reminding
from runnel.testing.workload import Client

CALL_MS = 4_000
AT_ONCE = 4  # that one client has under way


class Planner:
    """One life of one client of the schedule."""

    def __init__(self, client: Client, plan: Reminding) -> None:
        self._client = client
        self._plan = plan
        self._rng = client.rng
        self._history = client.stage.history
        self._number = 0

    async def plan(self) -> None:
        cluster = self._client.cluster()
        under_way: set[asyncio.Task[None]] = set()
        while self._client.stage.sending:
            while len(under_way) < AT_ONCE:
                under_way.add(asyncio.ensure_future(self._remind(cluster)))
            done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._client.nap(2 * self._client.stage.swarm.send_every_s)
        await asyncio.gather(*under_way)

    async def _remind(self, cluster: Cluster) -> None:
        """The life of one message, as far as its sender has a hand in it."""
        named = self._rng.chance(self._plan.named)
        reminder = self._new(self._rng.below(3) > 0 or not named)
        tries, placed = 0, None
        while placed is None and (named or not tries):
            tries += 1
            placed = await self._send(cluster, reminder, reminder.send.value if named else None)
        if tries > 1 or placed is None or not placed.scheduled_id:
            return
        while self._rng.chance(self._plan.changed) and reminder.settled != NEVER:
            left_s = max(reminder.due_s - self._client.now(), 0)
            await asyncio.sleep(self._rng.pick((left_s, self._rng.uniform(0, left_s))))
            await self._change(cluster, reminder, placed.scheduled_id)

    def _new(self, later: bool) -> Reminder:
        where = self._rng.pick(self._plan.keys)
        send = Send(
            self._client.process, str(where), f"{self._client.process}.{self._number}", self._client.now(),
            idempotent=False,
        )  # fmt: skip
        self._number += 1
        reminder = Reminder(send, self._time() if later else 0.0)
        self._history.sends.append(send)
        self._history.schedule.reminders.append(reminder)
        return reminder

    def _time(self) -> float:
        """Some time from now on, in whole milliseconds."""
        return int(self._client.now() * 1000 + self._rng.below(1 + self._rng.pick(self._plan.delays_ms))) / 1000

    async def _send(self, cluster: Cluster, reminder: Reminder, name: str | None) -> Placed | None:
        send = reminder.send
        message = Outgoing(
            send.value.encode(), partition=int(send.key.rpartition("/")[2]), message_id=name,
            deliver_at_ms=_wall_ms(reminder.due_s) if reminder.due_s else None,
        )  # fmt: skip
        try:
            told = await call(cluster, MESSAGE_SEND, SendTo(REMINDERS, [message]), timeout_ms=CALL_MS)
            if (error := error_of_failure(told.failures[0])) is not None:
                raise error
        except RunnelError as error:
            self._told("remind", send.value, error)
            await self._client.nap(0.3)
            return None
        send.status, send.ended = Status.OK, self._client.now()
        reminder.settled = self._client.now() if reminder.due_s else NEVER
        self._told("remind", send.value, None)
        return told.placed[0]

    async def _change(self, cluster: Cluster, reminder: Reminder, id: str) -> None:
        reminder.settled = NEVER
        if self._rng.chance(0.5):
            await self._cancel(cluster, reminder, id)
        else:
            await self._move(cluster, reminder, id)

    async def _cancel(self, cluster: Cluster, reminder: Reminder, id: str) -> None:
        send = reminder.send
        send.status = Status.INFO
        match await self._asked("cancel", send.value, call(cluster, SCHEDULE_CANCEL, Cancel([id]), timeout_ms=CALL_MS)):
            case None:
                send.status, send.ended = Status.FAIL, self._client.now()
            case NotPending():
                send.status = Status.OK

    async def _move(self, cluster: Cluster, reminder: Reminder, id: str) -> None:
        before, due_s = reminder.due_s, self._time()
        reminder.due_s = min(before, due_s)
        move = Move(id, _wall_ms(due_s))
        match await self._asked("move", reminder.send.value, call(cluster, SCHEDULE_MOVE, move, timeout_ms=CALL_MS)):
            case None:
                reminder.due_s, reminder.settled = due_s, self._client.now()
            case NotPending():
                reminder.due_s = before

    async def _asked(self, what: str, value: str, question: Awaitable[Rescheduled]) -> RunnelError | None:
        """None if it is done; NotPending if it certainly is not; nobody knows after any other error."""
        try:
            error = error_of_failure((await question).failures[0])
        except RunnelError as problem:
            error = problem
        self._told(what, value, error)
        return error

    def _told(self, what: str, value: str, error: RunnelError | None) -> None:
        told = "done" if error is None else f"{type(error).__name__}: {error}"
        self._client.stage.loop.trace(f"{what} {value} {told}")


def _wall_ms(at_s: float) -> int:
    return BEGIN_WALL_MS + round(at_s * 1000)
