"""The loop of the agents written in Python: lines of JSON in, lines of JSON out, a poll of the consumer in between."""

import json
import queue
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from typing import Any

Json = dict[str, Any]
Partition = tuple[str, int]


class Refusal(Exception):
    """A failure with Kafka's error code, None when the client named none."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(message)
        self.code = code


class Driver(ABC):
    """What a client library is asked to do. A method that is missing is a call the library does not have."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.joined = False

    @abstractmethod
    def poll(self) -> tuple[list[Json], set[Partition]]:
        """Poll the joined consumer briefly: new records, and the partitions it holds now."""

    @abstractmethod
    def leave(self) -> None:
        """Close the joined consumer."""

    @abstractmethod
    def refusal(self, error: Exception) -> Refusal:
        """The library's exception as error code and message."""


def record(partition: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Any) -> Json:
    """A consumed record as JSON."""
    return {
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "key": None if key is None else bytes(key).hex(),
        "value": None if value is None else bytes(value).hex(),
        "headers": [[name, None if data is None else bytes(data).hex()] for name, data in headers or ()],
    }


def unhex(text: str | None) -> bytes | None:
    """The bytes that a request carries as hex."""
    return None if text is None else bytes.fromhex(text)


def _say(message: Json) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _answer(driver: Driver, request: Json) -> None:
    number, do = request.pop("id"), request.pop("do")
    try:
        _say({"id": number, "ok": getattr(driver, do)(**request)})
    except Exception as error:  # noqa: BLE001  whatever the client raises is the answer
        traceback.print_exc()
        refusal = error if isinstance(error, Refusal) else driver.refusal(error)
        _say({"id": number, "error": refusal.code, "message": str(refusal) or repr(error)})


def _report(driver: Driver, held: set[Partition]) -> set[Partition]:
    records, now_held = driver.poll()
    for item in records:
        _say({"event": "record", "record": item})
    if now_held != held:
        _say({"event": "assigned", "partitions": sorted(now_held)})
    return now_held


def serve(driver: Driver) -> None:
    """Answer requests until the input ends."""
    requests: queue.Queue[str | None] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            requests.put(line)
        requests.put(None)

    threading.Thread(target=listen, daemon=True).start()
    held: set[Partition] = set()
    while True:
        try:
            line = requests.get(block=not driver.joined)
        except queue.Empty:
            held = _report(driver, held)
            continue
        if line is None:
            break
        _answer(driver, json.loads(line))
        held = held if driver.joined else set()
    if driver.joined:
        driver.leave()
