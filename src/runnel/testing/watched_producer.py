"""A producer that tells when a broker saw a gap which it did not make.

Such an answer loses nothing by itself. But there are clients that begin a new epoch then, and send again under it what
may be in the log: librdkafka does. So a broker has to know what it refused for now from what is missing.
"""

from collections.abc import Callable

from runnel.client.cluster import Cluster
from runnel.client.line import Batch, Line
from runnel.client.producer import Producer
from runnel.client.producer_settings import ProducerSettings
from runnel.client.sender import Sender
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.error_codes import ErrorCode


class WatchedLine(Line):
    @property
    def gave_up(self) -> bool:
        """Whether a number is missing since a batch was given up."""
        return self._gap


class EagerLine(WatchedLine):
    def _in_flight_bound(self) -> int:
        """As other clients do it: several are sent before the broker knows the producer."""
        return self.in_flight_max


class WatchedSender(Sender):
    line_type = WatchedLine
    on_gap: Callable[[str], None]

    def _settle_one(
        self, line: Line, batch: Batch, result: m.ProduceResponse.PartitionProduceResponse, broker: str
    ) -> None:
        assert isinstance(line, WatchedLine)
        if result.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not line.gave_up:
            self.on_gap(f"{broker} saw a gap before sequence {batch.sequence} of {batch.identity} in {batch.where}")
        super()._settle_one(line, batch, result, broker)


class EagerSender(WatchedSender):
    line_type = EagerLine


class WatchedProducer(Producer):
    sender_type = WatchedSender

    def __init__(self, cluster: Cluster, settings: ProducerSettings, on_gap: Callable[[str], None]) -> None:
        super().__init__(cluster, settings)
        assert isinstance(self._sender, WatchedSender)
        self._sender.on_gap = on_gap


class EagerProducer(WatchedProducer):
    sender_type = EagerSender
