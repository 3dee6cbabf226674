"""Brokers that died a moment ago: clients hear of them a little longer.

A client that waits for a coordinator on a broker that died has to ask anew who coordinates. librdkafka (2.10 and above,
issue 5511) never does, and waits for ever, if the broker disappears from the metadata while it waits. So a broker that
died stays listed for longer than clients wait before they try to connect again, 10 s by default; it leads nothing
meanwhile. Who led nothing coordinated nothing, and goes at once; so does who was seen to stop in order.
"""

from typing import Final

from runnel.cluster.image import Broker, Change, Image
from runnel.model.ids import BrokerId
from runnel.model.seams import Clock

LISTED_MS: Final = 20_000


class Departed:
    """Follows the image."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gone: dict[BrokerId, tuple[Broker, int]] = {}  # as they were, and until when they are listed

    def follow(self, change: Change) -> None:
        until_ms = self._clock.monotonic_ms() + LISTED_MS
        for broker_id in change.delta.brokers:
            was = change.before.brokers.get(broker_id)
            if was is None or not was.serving or _alive(change.after, broker_id):
                continue
            if _leads(change.before, broker_id):
                self._gone[broker_id] = (was, until_ms)

    def beside(self, image: Image) -> list[Broker]:
        """Those to be listed beside the ones that are alive."""
        now_ms = self._clock.monotonic_ms()
        self._gone = {broker_id: each for broker_id, each in self._gone.items() if now_ms < each[1]}
        return [broker for broker, _ in self._gone.values() if not _alive(image, broker.id)]


def _alive(image: Image, broker_id: BrokerId) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.alive


def _leads(image: Image, broker_id: BrokerId) -> bool:
    return any(each.leader == broker_id for topic in image.topics.values() for each in topic.partitions)
