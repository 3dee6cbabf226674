"""How a producer is set up."""

from dataclasses import dataclass

from runnel.model.errors import InvalidConfig
from runnel.model.limits import KIB, MIB
from runnel.record.compression import Compression

ACKS_ALL = -1


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    acks: int = ACKS_ALL  # 0: none, 1: the leader's, -1: all in-sync replicas'
    idempotent: bool = True  # needs acks all
    transactional_id: str | None = None  # what is sent belongs to transactions; one producer at a time has the id
    transaction_timeout_ms: int = 60_000  # a transaction that is open for longer is aborted
    classic_transactions: bool = False  # as before KIP-890, also if the cluster has its protocol switched on
    linger_ms: int = 5
    batch_bytes: int = 256 * KIB
    compression: Compression = Compression.NONE
    buffer_bytes_max: int = 64 * MIB
    request_bytes_max: int = 4 * MIB
    in_flight_max: int = 5  # requests to one broker; a broker remembers as many batches of an idempotent producer
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000  # from `send` to the last attempt
    block_timeout_ms: int = 60_000  # how long `send` waits for room, and a transaction for its coordinator
    partitioner: str = "sticky"
    create_topics: bool = True  # let the broker create a topic that does not exist, if it is set up to


def check_settings(settings: ProducerSettings) -> None:
    if settings.acks not in (-1, 0, 1):
        raise InvalidConfig(f"acks can't be {settings.acks}: allowed are 0, 1 and -1 (all)")
    if settings.idempotent and settings.acks != ACKS_ALL:
        raise InvalidConfig(f"an idempotent producer needs acks -1 (all), not {settings.acks}: change one of the two")
    if settings.transactional_id is not None and not (settings.idempotent and settings.transactional_id):
        raise InvalidConfig("a producer with a transactional id needs an id that is not empty, and to be idempotent")
    if settings.in_flight_max < 1 or (settings.idempotent and settings.in_flight_max > 5):
        raise InvalidConfig(f"in_flight_max can't be {settings.in_flight_max}: allowed is 1 to 5")
