"""What keeps a simulated cluster from being well: what faults may take away, and their end must give back."""

from collections.abc import Iterator, Sequence

from runnel.testing.copies import folder_of
from runnel.testing.invariants import Invariants, Truth
from runnel.testing.node import SimBroker


def ailing(brokers: Sequence[SimBroker], invariants: Invariants) -> list[str]:
    """Every reason why not all is well: brokers that are away, partitions that lack a leader or a replica."""
    away = [f"broker {broker.number} does not serve" for broker in brokers if not broker.up]
    if away:
        return away
    by_number = {broker.number: broker for broker in brokers}
    return [reason for truth in invariants.truths.values() for reason in _reasons(truth, by_number)]


def _reasons(truth: Truth, brokers: dict[int, SimBroker]) -> Iterator[str]:
    image = truth.image
    if truth.deleted:
        keepers = [number for number, broker in brokers.items() if broker.disk.files(folder_of(truth.key))]
        if keepers:
            yield f"{truth.name} was deleted, and is still on {keepers}"
        return
    if image.leader not in brokers or {*image.isr} != {*image.replicas} or image.elr or image.adding or image.removing:
        yield f"{truth.name} is {image}"
        return
    found = {
        number: replica
        for number in image.replicas
        for replica in brokers[number].replicas()
        if replica.key == truth.key
    }
    if found.keys() != {*image.replicas}:
        yield f"{truth.name} is open on {sorted(found)} only"
        return
    leader = found[image.leader]
    if not leader.is_leader or leader.high_watermark != leader.log.end_offset:
        yield f"{truth.name}: broker {image.leader} leads up to {leader.high_watermark} of {leader.log.end_offset}"
    if leader.last_stable_offset != leader.high_watermark:
        yield f"{truth.name}: a transaction is open at {leader.last_stable_offset} of {leader.high_watermark}"
    for number, replica in found.items():
        if (replica.log.end_offset, replica.high_watermark) != (leader.log.end_offset, leader.high_watermark):
            yield f"{truth.name}: broker {number} is at {replica.log.end_offset}, high {replica.high_watermark}"
