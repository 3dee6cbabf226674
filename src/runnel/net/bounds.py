"""The budgets of memory that the doors of a broker share, and how often its clients met a bound.

Rule 1: what a client can make large is charged to a budget before it is there, and given back when it is gone.
Rule 2: a client that meets a bound is refused, made to wait, or gets less; each time counts under the bound's setting.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from runnel.model.errors import TooBusy
from runnel.model.limits import FRAME_BYTES_MAX, MIB
from runnel.net.budget import ByteBudget

ANSWER_BYTES_MIN: Final = MIB  # a reader gets on, however little others have left
BYTES_MAX: Final = 256 * MIB  # of each budget, unless a setting says otherwise


class Bounds:
    """The budgets that all connections share, each under the name of its setting."""

    def __init__(
        self, *, requests: int = BYTES_MAX, bodies: int = BYTES_MAX, answers: int = BYTES_MAX,
        unpacked: int = BYTES_MAX, recompressed: int = FRAME_BYTES_MAX,
    ) -> None:  # fmt: skip
        self.requests = ByteBudget(requests)  # frames of the Kafka door
        self.bodies = ByteBudget(bodies)  # of HTTP requests and calls, with what they become when they are decoded
        self.answers = ByteBudget(answers)  # that are being made, or were not taken yet
        self.unpacked = ByteBudget(unpacked)  # messages that are being decompressed
        self.recompressed = ByteBudget(recompressed)  # batches in the codec of their topic, until they are in the log
        self.met: Counter[str] = Counter()

    @property
    def budgets(self) -> dict[str, ByteBudget]:
        """By their names in the metrics."""
        return {
            "requests": self.requests, "bodies": self.bodies, "answers": self.answers, "unpacked": self.unpacked,
            "recompressed": self.recompressed,
        }  # fmt: skip

    def share_of_answers(self, wanted: int) -> int:
        """How large an answer may be that is begun now: as large as is wanted and left, 1 MiB at least."""
        left = self.answers.limit - self.answers.used
        if wanted <= left:
            return wanted
        self.met["answers-bytes-max"] += 1
        return min(wanted, max(left, ANSWER_BYTES_MIN))

    def take_body(self, size: int) -> None:
        """Charge a request to the budget of bodies; TooBusy if that has no room now."""
        if not self.bodies.try_take(size):
            self.met["inflight-bytes-max"] += 1
            raise TooBusy("the requests under way hold as many bytes as they may: try again in a moment")

    @contextmanager
    def body(self, size: int) -> Iterator[None]:
        """Charge a request while it is worked on."""
        self.take_body(size)
        try:
            yield
        finally:
            self.bodies.release(size)

    @asynccontextmanager
    async def room(self, budget: ByteBudget, size: int, bound: str) -> AsyncIterator[None]:
        """Wait until a budget has room for something, and charge it while it is worked on."""
        if not budget.try_take(size):
            self.met[bound] += 1
            await _reserved(budget, size)
        try:
            yield
        finally:
            budget.release(size)


class Addresses:
    """How many connections each address has, of those to one listener."""

    def __init__(self, each_max: int) -> None:
        self._each_max = each_max
        self._open: Counter[str] = Counter()

    def enter(self, peer: str) -> bool:
        """Count a connection of a peer (HOST:PORT) until it leaves; False if its address has as many as it may."""
        address = peer.rpartition(":")[0]
        self._open[address] += 1
        return self._open[address] <= self._each_max

    def leave(self, peer: str) -> None:
        address = peer.rpartition(":")[0]
        self._open[address] -= 1
        if self._open[address] <= 0:
            del self._open[address]


class Unsent:
    """The bytes that one client has not taken of its answers, charged to the budget of answers."""

    __slots__ = ("_answers", "size")

    def __init__(self, bounds: Bounds) -> None:
        self._answers = bounds.answers
        self.size = 0

    def is_now(self, size: int) -> None:
        if size < self.size:
            self._answers.release(self.size - size)
        else:
            self._answers.charge(size - self.size)
        self.size = size


async def _reserved(budget: ByteBudget, size: int) -> None:
    turn = asyncio.get_running_loop().create_future()

    def granted() -> None:
        if turn.done():  # the asker was cancelled just now
            budget.release(size)
        else:
            turn.set_result(None)

    if budget.reserve(size, granted):
        return
    try:
        await turn
    except asyncio.CancelledError:
        if turn.cancelled():
            budget.withdraw(granted)
        else:
            budget.release(size)
        raise
