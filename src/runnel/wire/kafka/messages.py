"""The messages of the Kafka protocol as classes: `messages.FetchRequest`, `messages.FetchRequest.FetchTopic`.

Rule 1: a class is built from the schema when it is first named; messages.pyi tells type checkers what there is.
        Threads that name it at once get the same one.
Rule 2: one class serves all versions: a field that a version lacks keeps its default, and is not sent.
Rule 3: a tagged struct that was not sent is None; an array is a list; bytes and records read are slices of the frame.
"""

from runnel.wire.kafka import notation
from runnel.wire.kafka.classes import Message, build


def __getattr__(name: str) -> type[Message]:
    try:
        schema = notation.message(name)
    except notation.UnknownMessage as unknown:
        raise AttributeError(str(unknown)) from None
    root: type[Message] = globals().setdefault(name, build(schema))
    return root


def __dir__() -> list[str]:
    return notation.message_names()
