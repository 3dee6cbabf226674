"""Sinks: batches that are written by many, and published once, as a whole, by one. Names and values of the calls.

A *sink* is named by its id. It publishes *batches*, numbered upwards. Many *attempts* write a batch, each for one
partition of the job's (not of a topic), each in a transaction that it leaves open; its *handle* goes to whoever
publishes the batch. The law of model/calls.py holds here too.
"""

from typing import Final

from runnel.model.calls import Nothing, Value, Verb

PREFIX: Final = "sink/"  # of the transactional ids that belong to sinks


class Handle(Value, frozen=True):
    """An open transaction, written by one attempt."""

    transactional_id: str
    producer_id: int
    epoch: int


class BeginAttempt(Value, frozen=True):
    """Let one attempt write. The same attempt again takes the place of the earlier one, which can't go on."""

    sink: str
    batch: int
    partition: int
    attempt: int
    query: str = ""  # whose sink it is: another query is refused, as its batches have other numbers. "": not checked
    timeout_ms: int = 0  # how long its transaction may be open before the batch is committed; 0: the longest allowed

    @property
    def place(self) -> tuple[int, int, int]:
        return self.batch, self.partition, self.attempt


class Begun(Value, frozen=True):
    """Either the batch was published already, and there is nothing to write; or the transaction to write in."""

    decided: bool
    handle: Handle | None = None
    timeout_ms: int = 0


class CommitBatch(Value, frozen=True):
    """Publish a batch: all that these attempts wrote, and nothing that others wrote for it."""

    sink: str
    batch: int
    handles: list[Handle]
    query: str = ""
    final: bool = False  # the sink is used no more: it may be forgotten after a day


class Published(Value, frozen=True):
    """The batch is published; readers see all of it."""

    repeated: bool  # it was published before: what these handles hold was dropped, unless it is just that


class AbortBatch(Value, frozen=True):
    """Drop what these attempts wrote, unless the batch was published with it."""

    sink: str
    batch: int
    handles: list[Handle]


class NamedSink(Value, frozen=True):
    sink: str


class OpenAttempt(Value, frozen=True):
    handle: Handle
    batch: int
    partition: int
    attempt: int
    began_ms: int
    chosen: bool = False  # it belongs to the batch that is being published or dropped


class SinkDescription(Value, frozen=True):
    sink: str
    query: str
    last_batch: int  # the last one that is published; -1: none
    phase: str  # idle, holding, publishing, dropping, or forgetting
    batch: int  # that is being published or dropped; -1: none
    changed_ms: int
    attempts: list[OpenAttempt]


class ListSinks(Value, frozen=True):
    prefix: str = ""


class ListedSink(Value, frozen=True):
    sink: str
    last_batch: int
    phase: str
    attempts: int
    changed_ms: int


class Sinks(Value, frozen=True):
    sinks: list[ListedSink]


class ForgottenSink(Value, frozen=True):
    """What was open is aborted, and nothing is known of the sink any more."""

    attempts: int


# --- for users: any broker answers them
SINK_BEGIN: Final = Verb("sink.begin", BeginAttempt, Begun, waits=True)
SINK_COMMIT: Final = Verb("sink.commit", CommitBatch, Published, waits=True)
SINK_ABORT: Final = Verb("sink.abort", AbortBatch, Nothing, waits=True)
SINK_DESCRIBE: Final = Verb("sink.describe", NamedSink, SinkDescription)
SINK_LIST: Final = Verb("sink.list", ListSinks, Sinks)
SINK_FORGET: Final = Verb("sink.forget", NamedSink, ForgottenSink, waits=True)


# --- what a sink asks the coordinator of a transactional id
class OpenSlot(Value, frozen=True):
    """A new producer for the id; what was open under it is aborted first."""

    transactional_id: str
    timeout_ms: int  # 0: the longest allowed


class Opened(Value, frozen=True):
    handle: Handle
    timeout_ms: int


class Hold(Value, frozen=True):
    """Let nobody but the sink end this open transaction, and nobody add to it."""

    sink: str
    handle: Handle


class Finish(Value, frozen=True):
    """End a transaction, for good: commit it if the sink holds it, or abort it. Its producer can't go on."""

    sink: str
    handle: Handle
    commit: bool
    held: bool = True  # abort it even if it is held


class Finished(Value, frozen=True):
    complete: bool  # every partition knows; else ask again
    committed: bool = False  # how it ended, as far as that is known


class NamedTransaction(Value, frozen=True):
    transactional_id: str


class Holder(Value, frozen=True):
    """The sink that holds the open transaction of an id; "": none does."""

    sink: str


TXN_OPEN: Final = Verb("txn.open", OpenSlot, Opened)
TXN_HOLD: Final = Verb("txn.hold", Hold, Nothing)
TXN_FINISH: Final = Verb("txn.finish", Finish, Finished)

# --- for those who look at transactions: any broker answers them
TXN_HOLDER: Final = Verb("txn.holder", NamedTransaction, Holder)
TXN_FORCE_ABORT: Final = Verb("txn.force-abort", NamedTransaction, Nothing)
