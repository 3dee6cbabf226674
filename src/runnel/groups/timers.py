"""What the deadlines of groups are about."""

from enum import IntEnum
from typing import NamedTuple


class Alarm(IntEnum):
    """What a deadline is about."""

    SESSION = 1  # a member was not heard of
    JOIN = 2  # classic: the others have had their time to rejoin
    SYNC = 3  # classic: members that never fetched their assignment
    REVOKE = 4  # KIP-848: a member does not give its partitions up
    ASSIGN = 5  # KIP-848: a large group may be assigned again
    EXPIRE = 6  # the shard: look for offsets that are too old


class Timer(NamedTuple):
    alarm: Alarm
    group_id: str = ""
    member_id: str = ""
