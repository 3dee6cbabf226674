"""What clients in other processes did and saw, as lines of JSON; read back as the history that the checker judges.

A line is written when something begins and when it ends, and is in the file at once: a client that is killed leaves
its doubts behind. Times are those of the machine's monotonic clock, which all processes share.

A client that repeats a commit may have one too many under way: what it gave up when a link was cut arrives when the
link is back, behind later commits, and no broker can tell. Such a commit is both acknowledged and in doubt.
"""

import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runnel.testing.history import Assigned, Commit, History, Joined, Looked, Poll, Records, Send, Status

PAUSE_S = 0.08  # before a library repeats a commit: 100 ms in all three, in librdkafka up to a fifth less


class Journal:
    """The notes of one process; its threads share it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()
        self._commits = 0

    def close(self) -> None:
        self._file.close()

    def note(self, kind: str, **what: Any) -> None:
        line = json.dumps({"kind": kind, "at": time.monotonic(), **what})
        with self._lock:
            self._file.write(line + "\n")

    def send(self, process: str, key: str, value: str, *, durable: bool = True, idempotent: bool = True) -> None:
        self.note("send", process=process, key=key, value=value, durable=durable, idempotent=idempotent)

    def acked(self, value: str, offset: int | None) -> None:
        self.note("acked", value=value, offset=offset)

    def refused(self, value: str, *, certain: bool, why: str) -> None:
        """It failed; `certain` if it can't be there."""
        self.note("refused", value=value, certain=certain, why=why)

    def assigned(self, process: str, positions: Mapping[str, int]) -> None:
        self.note("assigned", process=process, positions=positions)

    def polled(self, process: str, records: Records, begun: float, **group: Any) -> None:
        if records:
            self.note("polled", process=process, records=records, begun=begun, **group)

    def commit(self, group: str, offsets: Mapping[str, int], member: str = "", generation: int = -1) -> str:
        """A commit begins; the name under which it ends."""
        with self._lock:
            self._commits += 1
            name = f"{threading.get_ident()}.{self._commits}"
        self.note("commit", name=name, group=group, offsets=offsets, member=member, generation=generation)
        return name

    def committed(self, name: str, *, once: bool = False) -> None:
        """It was acknowledged; `once` if it was certainly sent only once."""
        self.note("committed", name=name, once=once)

    def looked(self, group: str, offsets: Mapping[str, int], begun: float) -> None:
        self.note("looked", group=group, offsets=offsets, begun=begun)

    def joined(self, group: str, member: str, generation: int) -> None:
        self.note("joined", group=group, member=member, generation=generation)

    def trouble(self, process: str, what: str) -> None:
        """A client told its application of something; no anomaly by itself."""
        self.note("trouble", process=process, what=what)


def lines_of(path: Path) -> Iterable[dict[str, Any]]:
    """The notes of one file; one that was being written when its writer was killed is left out."""
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def history_of(paths: Iterable[Path]) -> History:
    """Everything that was noted, in order of time."""
    reader = _Reader()
    for path in paths:
        for line in lines_of(path):
            reader.take(path.name, line)
    history = reader.history
    history.sends.sort(key=lambda send: send.begun)
    history.commits.sort(key=lambda commit: commit.begun)
    history.looks.sort(key=lambda look: look.begun)
    history.joins.sort(key=lambda join: join.at)
    return history


class _Reader:
    """Polls stay in the order of their file: they are judged process by process."""

    def __init__(self) -> None:
        self.history = History()
        self._sends: dict[str, Send] = {}
        self._commits: dict[str, Commit] = {}

    def take(self, file: str, line: dict[str, Any]) -> None:
        at: float = line.pop("at")
        match line.pop("kind"):
            case "send":
                send = Send(**line, begun=at)
                self._sends[send.value] = send
                self.history.sends.append(send)
            case "acked":
                send = self._sends[line["value"]]
                send.status, send.ended, send.offset = Status.OK, at, line["offset"]
            case "refused":
                send = self._sends[line["value"]]
                send.status, send.ended = (Status.FAIL if line["certain"] else Status.INFO), at
            case "commit":
                name = line.pop("name")
                commit = self._commits[f"{file} {name}"] = Commit(**line, begun=at)
                self.history.commits.append(commit)
            case "committed":
                commit = self._commits[f"{file} {line['name']}"]
                if not line["once"] and at - commit.begun >= PAUSE_S:
                    self.history.commits.append(replace(commit))  # an earlier try: it may still come
                commit.status, commit.ended = Status.OK, at
            case kind:
                self._saw(kind, at, line)

    def _saw(self, kind: str, at: float, line: dict[str, Any]) -> None:
        match kind:
            case "polled":
                records = {
                    key: [(offset, value) for offset, value in found] for key, found in line.pop("records").items()
                }
                self.history.polls.append(Poll(records=records, ended=at, **line))
            case "assigned":
                self.history.polls.append(Assigned(**line))
            case "looked":
                self.history.looks.append(Looked(**line, ended=at))
            case "joined":
                self.history.joins.append(Joined(**line, at=at))
