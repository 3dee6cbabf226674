"""Whole answers of a protocol whose answers begin with their size, over a plain socket."""

import socket
import struct

from bench.load import Refused


class Line:
    """One connection for one question at a time. An answer is valid until the next: its memory is used again."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray(4)

    def ask(self, request: bytes) -> memoryview:
        """The whole answer, without its size."""
        self._connection.sendall(request)
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> memoryview:
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        view, filled = memoryview(self._buffer)[:size], 0
        while filled < size:
            received = self._connection.recv_into(view[filled:])
            if not received:
                raise Refused("the server closed the connection")
            filled += received
        return view
