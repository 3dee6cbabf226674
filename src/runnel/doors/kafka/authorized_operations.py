"""Authorized operations (KIP-430): what a client may do with a resource, as bits, told to clients that ask for it.

Rule 1: there is no access control yet, so that everybody may do all that a resource of its kind knows.
Rule 2: clients that do not ask are told UNASKED, as are all of groups that can't be described. Of topics that are not
        there clients that ask are told as of any topic, as by Kafka: kafka-python 2 fails on UNASKED.
"""

from enum import IntEnum
from typing import Final

UNASKED: Final = -(2**31)


class Operation(IntEnum):
    """The numbers are Kafka's, and those of the bits."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


_O = Operation
ON_TOPIC: Final = _bits(
    _O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS
)  # fmt: skip
ON_GROUP: Final = _bits(_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)
ON_CLUSTER: Final = _bits(
    _O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE
)  # fmt: skip


def operations(kind: int, *, asked: bool) -> int:
    """The answer for a client that may do everything with resources of a kind."""
    return kind if asked else UNASKED
