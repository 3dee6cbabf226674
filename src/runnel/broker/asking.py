"""Questions about transactions that are under way to their coordinators.

The end of a transaction voids the questions about it: what its coordinator said before does not count any more. A
producer may go on with its next transaction while the last one is being ended, so questions about that one stay.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from runnel.groups.values import EndTransaction


class Question:
    """About the transaction of a producer in an epoch."""

    __slots__ = ("epoch", "void")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.void = False


class Questions:
    """Those of one shard, by producer."""

    def __init__(self) -> None:
        self._open: dict[int, list[Question]] = {}

    @contextmanager
    def about(self, producer_id: int, epoch: int) -> Iterator[Question]:
        question = Question(epoch)
        self._open.setdefault(producer_id, []).append(question)
        try:
            yield question
        finally:
            self._open[producer_id].remove(question)
            if not self._open[producer_id]:
                del self._open[producer_id]

    def end(self, ending: EndTransaction) -> None:
        for question in self._open.get(ending.producer_id, ()):
            question.void = question.void or ending.ends(question.epoch)

    def __len__(self) -> int:
        return len(self._open)
