"""Runnel for Python programs.

    from runnel.client import connect              # async
    from runnel.client.sync import connect         # the same, blocking

    async with connect("127.0.0.1:9092") as runnel:
        await runnel.send("orders", {"id": 42})

Below it lies a client of the Kafka protocol, which brokers and the command line use as well: `cluster`, `producer`,
`consumer`, `group_consumer`, `admin`. It runs on the event loop that it is called on: no threads, no global state, a
deadline on every wait. Time for deadlines is the loop's; timestamps come from the Clock and chance from the Rng that
are handed in, so it runs simulated as well.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runnel.client.connecting import connect

__all__ = ["connect"]


def __getattr__(name: str) -> Any:
    """`connect` brings the machine's clock with it: nobody who has another one imports it."""
    if name != "connect":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from runnel.client.connecting import connect

    return connect
