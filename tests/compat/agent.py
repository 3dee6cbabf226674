"""A foreign client in a process of its own, driven by lines of JSON.

Every client is wrapped in a small program (`agents/`) that speaks one language, so that one test serves them all and a
member of a group can really die. A request is {"id", "do", ...}; its answer {"id", "ok"} or {"id", "error", "message"},
where `error` is Kafka's error code (or null when the client itself refused). A member of a group also reports on its
own: {"event": "assigned", "partitions"} and {"event": "record", "record"}.
"""

import itertools
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.compat.waiting import wait_until

REPLY_S_MAX = 120.0  # generous: only a client that hangs reaches it
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


@dataclass(frozen=True)
class Message:
    """What a client sends, or got; offset, partition and timestamp are None where the sender leaves them open."""

    value: bytes | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp: int | None = None
    offset: int | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "value": _hex(self.value),
            "key": _hex(self.key),
            "headers": [[name, _hex(value)] for name, value in self.headers],
            "partition": self.partition,
            "timestamp": self.timestamp,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Message":
        return cls(
            value=_bytes(record["value"]),
            key=_bytes(record["key"]),
            headers=tuple((name, _bytes(value)) for name, value in record["headers"]),
            partition=record["partition"],
            timestamp=record["timestamp"],
            offset=record["offset"],
        )


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


class Refused(Exception):
    """The call failed: `code` is Kafka's error code, None when the client did not name one."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(f"error {code}: {message}")
        self.code = code


class Agent:
    """One running client program."""

    def __init__(self, name: str, command: Sequence[str], *, cwd: Path, log: Path) -> None:
        self.name = name
        self.records: list[Message] = []
        self.assignment: frozenset[tuple[str, int]] = frozenset()
        self.assignments: list[frozenset[tuple[str, int]]] = []
        self.on_leave: Callable[[], object] = lambda: None
        self._log = log
        self._replies: dict[int, dict[str, Any]] = {}
        self._ids = itertools.count(1)
        self._writing = threading.Lock()  # scenarios of several tests may share an agent
        environment = {**os.environ, "PYTHONWARNINGS": "ignore", "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=cwd,
                env=environment,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, name=f"agent {name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            match message.get("event"):
                case "assigned":
                    self.assignment = frozenset((topic, number) for topic, number in message["partitions"])
                    self.assignments.append(self.assignment)
                case "record":
                    self.records.append(Message.from_json(message["record"]))
                case _:
                    self._replies[message["id"]] = message

    def start(self, do: str, **arguments: Any) -> int:
        """Send a request; `result` gets its answer."""
        assert self.process.stdin is not None
        with self._writing:
            number = next(self._ids)
            self.process.stdin.write(json.dumps({"id": number, "do": do, **arguments}) + "\n")
            self.process.stdin.flush()
        return number

    def result(self, request_id: int) -> Any:
        """The answer to a request, or Refused."""
        self.wait(lambda: request_id in self._replies, "an answer")
        reply = self._replies.pop(request_id)
        if "ok" in reply:
            return reply["ok"]
        raise Refused(reply["error"], f"{self.name}: {reply['message']}")

    def call(self, do: str, **arguments: Any) -> Any:
        """Ask and wait for the answer."""
        return self.result(self.start(do, **arguments))

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something this client reports."""

        def holds_or_dead() -> bool:
            if condition():
                return True
            if self.process.poll() is not None and not self._reader.is_alive() and not condition():
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}: {self.trouble()}")
            return False

        try:
            wait_until(holds_or_dead, f"{self.name}: {what}", limit_s=REPLY_S_MAX)
        except TimeoutError as error:
            seen = f"assigned {sorted(self.assignment)}, {len(self.records)} records"
            raise TimeoutError(f"{error} ({seen}): {self.trouble()}") from None

    def trouble(self) -> str:
        """The end of what the program wrote to its standard error."""
        return self._log.read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """SIGKILL: it says no goodbye to its group."""
        self.process.kill()
        self._end()

    def leave(self) -> None:
        """Leave the group; the process lives on, for the next test that needs a member."""
        self.call("leave")
        self.records.clear()
        self.assignments.clear()
        self.assignment = frozenset()
        self.on_leave()

    def hang_up(self) -> None:
        """Close its input: the program leaves its group and ends."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def close(self) -> None:
        """Hang up and wait for its end."""
        self.hang_up()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.process.kill()
        self._end()

    def _end(self) -> None:
        self.process.wait()
        self._reader.join()
        self.hang_up()
        assert self.process.stdout is not None
        self.process.stdout.close()

    # --- the verbs, typed
    def produce(
        self, topic: str, messages: Iterable[Message], *, codec: str = "none", acks: int = -1, **options: Any
    ) -> list[tuple[int, int]]:
        """Send; the partition and offset of each (offset -1 where acks=0 told none)."""
        records = [message.to_json() for message in messages]
        placed = self.call("produce", topic=topic, records=records, codec=codec, acks=acks, options=options)
        return [(partition, offset) for partition, offset in placed]

    def read(self, topic: str, *, partitions: int = 1, isolation: str = UNCOMMITTED) -> list[Message]:
        """Everything from the earliest offset to the latest that this isolation shows, partition by partition."""
        records = self.call("read", topic=topic, partitions=list(range(partitions)), isolation=isolation)
        messages = [Message.from_json(record) for record in records]
        return sorted(messages, key=lambda message: (message.partition, message.offset))

    def join(self, group: str, *topics: str, **options: Any) -> None:
        """Become a member of a group; assignments and records are reported from now on."""
        self.call("join", group=group, topics=list(topics), options=options)

    def wait_assigned(self, count: int) -> None:
        """Wait until it holds exactly that many partitions."""
        self.wait(lambda: len(self.assignment) == count, f"{count} partitions")

    def wait_values(self, values: Iterable[bytes]) -> None:
        """Wait until all these values arrived."""
        wanted = set(values)
        self.wait(lambda: wanted <= {record.value for record in self.records}, f"{len(wanted)} values")
