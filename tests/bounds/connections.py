"""Many connections, and connections that are held."""

import socket
import time

from tests.bounds.rig import LIMIT_S, ask

from runnel.testing.process import BrokerProcess

HALF_A_FRAME = b"\0\0\0\x20\0\x12\0\0" + bytes(8)


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), LIMIT_S)


def come_and_go(broker: BrokerProcess, count: int) -> str:
    """Connections with half a request on each that end all at once."""
    for address, sent in ((broker.kafka, HALF_A_FRAME), (broker.http, b"GET /health HT")):
        connections = [connected(address) for _ in range(count)]
        for one in connections:
            one.sendall(sent)
        wait_until_open(broker, count)
        for one in connections:
            one.close()
        wait_until_open(broker, 0)
    return f"{count} connections to each door, half a request on each"


def wait_until_open(broker: BrokerProcess, count: int) -> None:
    """Until a door has so many connections, or no more than a few where that is none."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        told = ask(broker.http, "GET", "/metrics").content.decode()
        opened = [float(line.split()[1]) for line in told.splitlines() if line.startswith("runnel_door_open_conn")]
        if max(opened) >= count if count else max(opened) <= 5:
            return
        time.sleep(0.05)


def held_by_a_byte(broker: BrokerProcess, count: int, seconds: float) -> str:
    """Connections to both doors that send a byte now and then, until the broker closes them."""
    sent = ((broker.kafka, b"\0\0\x20\0"), (broker.http, b"GET /health HTTP/1.1\r\nx: "))
    held = []
    for address, begun in sent:
        for _ in range(count):
            one = connected(address)
            one.sendall(begun)
            held.append(one)
    end, most = time.monotonic() + seconds, len(held)
    while held and time.monotonic() < end:
        held = [one for one in held if _takes_a_byte(one)]
        time.sleep(0.2)
    for one in held:
        one.close()
    return f"{most} connections held by a byte now and then: {most - len(held)} were closed in time"


def _takes_a_byte(one: socket.socket) -> bool:
    try:
        one.sendall(b"x")
    except OSError:
        one.close()
        return False
    return True
