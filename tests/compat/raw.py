"""The Kafka protocol by hand, for what no client shows: the few bytes a test needs, made and read without any codec."""

import socket
import struct
from collections.abc import Iterator

FETCH, LIST_OFFSETS = 1, 2


def string(text: str | None) -> bytes:
    """A string with its two-byte length; null is -1."""
    if text is None:
        return struct.pack(">h", -1)
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def frame(api: int, version: int, body: bytes, *, correlation: int = 7, client: str | None = "raw") -> bytes:
    """A request with header v1 (not flexible), its size in front."""
    message = struct.pack(">hhi", api, version, correlation) + string(client) + body
    return struct.pack(">i", len(message)) + message


def receive(connection: socket.socket) -> bytes:
    """One frame without its size; EOFError when the broker closed."""
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the broker closed the connection")
        data += part
    return bytes(data)


def exchange(address: str, request: bytes) -> bytes:
    """Send one request on a connection of its own; the answer's bytes after the correlation id."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request)
        return receive(connection)[4:]


def fetch_records(address: str, topic: str, partition: int, offset: int) -> bytes:
    """The record bytes that Fetch v10 answers with: the first version that may carry zstd."""
    place = struct.pack(">iiqqi", partition, -1, offset, -1, 8_000_000) + struct.pack(">i", 0)
    body = struct.pack(">iiiibii", -1, 1000, 1, 8_000_000, 0, 0, -1) + struct.pack(">i", 1) + string(topic)
    answer = exchange(address, frame(FETCH, 10, body + struct.pack(">i", 1) + place))
    position = 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4  # throttle, error, session, topics, name, partitions, index
    error, _high, _stable, _start, aborted = struct.unpack_from(">hqqqi", answer, position)
    assert (error, max(aborted, 0)) == (0, 0)
    (size,) = struct.unpack_from(">i", answer, position + 30)
    return answer[position + 34 : position + 34 + size]


def batches(records: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Base offset, last offset, attributes and size of each whole batch."""
    position = 0
    while position + 61 <= len(records):
        base, length = struct.unpack_from(">qi", records, position)
        (attributes, last_delta) = struct.unpack_from(">hi", records, position + 21)
        if position + 12 + length > len(records):
            return
        yield base, base + last_delta, attributes, 12 + length
        position += 12 + length


def batch_attributes(address: str, topic: str, partition: int = 0) -> list[tuple[int, int]]:
    """Attributes and size of every batch of a partition."""
    found, offset = [], 0
    while records := fetch_records(address, topic, partition, offset):
        for _, last, attributes, size in batches(records):
            found.append((attributes, size))
            offset = last + 1
    return found


def end_offset(connection: socket.socket, topic: str) -> int:
    """Where partition 0 ends now (ListOffsets v1)."""
    place = struct.pack(">iq", 0, -1)
    body = struct.pack(">ii", -1, 1) + string(topic) + struct.pack(">i", 1) + place
    connection.sendall(frame(LIST_OFFSETS, 1, body))
    answer = receive(connection)
    error, _time, offset = struct.unpack_from(">hqq", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
    assert error == 0
    return int(offset)
