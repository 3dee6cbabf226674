"""Loading a server with any dialect: here a toy that answers each line with a dot."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pytest

from bench.load import AckCounter, Refused, connect, drive


@dataclass(frozen=True)
class Toy:
    address: str

    def for_connection(self, number: int) -> "Toy":
        return self

    def connect(self) -> socket.socket:
        return connect(self.address)

    def create(self) -> None: ...

    def delete(self) -> None: ...

    def request(self, payloads: Sequence[bytes]) -> bytes:
        return b"".join(payload + b"\n" for payload in payloads)

    def answers(self, messages: int) -> int:
        return messages

    def acks(self) -> AckCounter:
        return lambda received: received.count(b".")

    def read(self, total: int) -> Iterator[int]:
        while total:
            yield min(3, total)
            total -= min(3, total)

    def tail(self) -> Iterator[bytes]:
        while True:
            yield drive.stamp(0.0)


class ToyServer:
    """Counts lines; answers each, or closes the connection after `lines_max` of them."""

    def __init__(self, lines_max: int = 1 << 30) -> None:
        self.lines = 0
        self._lines_max = lines_max
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.toy = Toy(f"127.0.0.1:{self._listener.getsockname()[1]}")
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):  # a client may leave with answers under way
            while self.lines < self._lines_max and (received := connection.recv(65536)):
                count = received.count(b"\n")
                self.lines += count
                connection.sendall(b"." * count)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def server() -> Iterator[ToyServer]:
    made = ToyServer()
    yield made
    made.close()


def test_publish_sends_all_and_waits_for_every_answer(server: ToyServer) -> None:
    outcome = drive.publish(drive.Bulk(server.toy, total=100, size=10, batch=10, seconds=60, window=3))
    assert outcome.messages == server.lines == 100
    assert outcome.seconds > 0


def test_publish_stops_when_its_time_is_over(server: ToyServer) -> None:
    outcome = drive.publish(drive.Bulk(server.toy, total=1 << 40, size=10, batch=10, seconds=0.01))
    assert outcome.messages == server.lines


def test_reading_counts_what_came(server: ToyServer) -> None:
    assert drive.read(drive.Bulk(server.toy, total=10, size=1, batch=1, seconds=60)).messages == 10


def test_ping_pong_has_one_request_in_flight_on_each_connection(server: ToyServer) -> None:
    outcome, trips = drive.ping_pong(drive.Single(server.toy, size=10, connections=4, seconds=0.05))
    assert outcome.messages == len(trips) > 0
    assert 0 <= server.lines - outcome.messages <= 4  # what was in flight at the end is not counted


def test_pace_gives_a_latency_for_each_message(server: ToyServer) -> None:
    latencies = drive.pace(drive.Paced(server.toy, size=30, rate=1000, seconds=0.05))
    assert len(latencies) == server.lines == 50
    assert all(latency >= 0 for latency in latencies)


def test_following_ends_with_the_last_message(server: ToyServer) -> None:
    assert len(drive.follow(drive.Paced(server.toy, size=30, rate=100, seconds=0.1))) == 10


def test_a_server_that_hangs_up_is_an_error() -> None:
    server = ToyServer(lines_max=5)
    try:
        with pytest.raises((Refused, ConnectionError)):
            drive.publish(drive.Bulk(server.toy, total=1 << 30, size=10, batch=10, seconds=60))
    finally:
        server.close()


def test_a_stamp_tells_its_age() -> None:
    assert drive.age(drive.stamp(0.0) + b"rest") > 0
    assert len(drive.stamp(1e9)) == drive.STAMP_BYTES
