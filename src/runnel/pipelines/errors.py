"""What can go wrong in a pipeline beyond what the client raises. A message says what happened and what to do next."""

from runnel.model.errors import ClientError


class BadOption(ClientError):
    """An option of a reader, a writer or a job is wrong."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"option {name}={str(value)!r} can't be used: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[type["BadOption"], tuple[str, object, str]]:
        return BadOption, (self.name, self.value, self.allowed)


class UnknownOption(ClientError):
    """Nothing listens to an option of this name: it would have counted for nothing."""


class DataLoss(ClientError):
    """Messages that were to be read are not kept any more."""


class NothingThere(ClientError):
    """What was to be read does not exist: no topic, or no message at such a time."""
