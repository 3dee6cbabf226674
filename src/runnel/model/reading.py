"""Reading a partition's messages one by one: the call to its leader (broker/reading.py)."""

from typing import Final
from uuid import UUID

from runnel.model.calls import Read, Value, Verb

START: Final = -2  # instead of an offset: the first that is kept
END: Final = -1  # what is appended from now on


class ReadPartition(Value, frozen=True):
    """The messages from an offset on, or from a time on."""

    topic_id: UUID
    partition: int
    offset: int = START
    time_ms: int = -1  # the first message at or after this time, if it is not -1
    messages_max: int = 100
    bytes_max: int = 1 << 20
    wait_ms: int = 0  # for the first one
    filter: str = ""
    whole: bool = True  # a value above `bytes_max` comes all the same, where it is the first; if not, its size does


class Reading(Value, frozen=True):
    """What was found, and where to read on: what lies between was not wanted."""

    messages: list[Read]
    next_offset: int
    start_offset: int
    end_offset: int


READ_PARTITION: Final = Verb("partition.read", ReadPartition, Reading, waits=True)
