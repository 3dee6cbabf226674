"""What is decided about a request: what changes, and what its parts are told."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from runnel.cluster.drafting import Unclean
from runnel.cluster.image import Delta
from runnel.model.errors import RunnelError

T = TypeVar("T")


class Decision(NamedTuple, Generic[T]):
    """What changes, and what each part of the request is told, in its order."""

    delta: Delta
    results: Sequence[T | RunnelError] = ()
    keys: Sequence[object] = ()  # of each result: what has to be stored before it is true
    unclean: Sequence[Unclean] = ()
