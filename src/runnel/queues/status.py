"""How a message stands in its queue.

fresh --lease--> leased --accept--> done
  |                |  release, its time is up
  | passed over    v
  +----> ready <-- wait (until a moment)      what leaves for good is done here, see `outbox`
"""

from typing import Final, Literal, NamedTuple, TypeAlias

FRESH: Final = 0  # never looked at
DONE: Final = 1
READY: Final = 2  # looked at, and to be had
WAIT: Final = 3  # to be had from a moment on
LEASED: Final = 4
StateName: TypeAlias = Literal["new", "done", "ready", "waiting", "leased"]
STATES: Final[tuple[StateName, ...]] = ("new", "done", "ready", "waiting", "leased")  # by kind


class Status(NamedTuple):
    """What holds for one offset, or a run of them."""

    kind: int
    attempts: int = 0  # how often it was delivered
    until: int = 0  # when the wait or the lease ends; 0: with its owner
    owner: str = ""  # of a lease; not kept
    bound: bool = False  # a lease until a moment that also ends with its owner: kept as one that ends so


FRESH_STATUS: Final = Status(FRESH)
DONE_STATUS: Final = Status(DONE)
