"""What became of each part of a call: a value, or the error that it stands for."""

from collections.abc import Sequence
from typing import TypeVar

from runnel.model.calls import Failure
from runnel.model.errors import RunnelError, error_named

T = TypeVar("T")


def error_of_failure(failure: Failure | None) -> RunnelError | None:
    """The error as it was raised in the broker, or one that tells its name if nobody here knows that."""
    if failure is None:
        return None
    return error_named(failure.name, failure.message) or RunnelError(f"{failure.name}: {failure.message}")


def only(values: Sequence[T | None], failures: Sequence[Failure | None]) -> T:
    """The one value, or its error raised."""
    raise_for(failures)
    [value] = values
    if value is None:
        raise RunnelError("a broker answered neither with a result nor with an error: is its version another one?")
    return value


def raise_for(failures: Sequence[Failure | None]) -> None:
    """Raise the first error, if there is one."""
    for failure in failures:
        if error := error_of_failure(failure):
            raise error
