"""`make faults-pauses`: brokers that hang for about as long as producers wait for an answer, under many producers.

librdkafka gives up what it asked a silent leader, and begins with the next one from another thread: sometimes with what
follows, before what was given up is back in its queue (its issue 4953). Told of a gap, it begins a new epoch, and sends
again what is in the log without an acknowledgement. Ends with 1 if that happened, or a message was doubled or lost.
"""

import argparse
import logging
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from tests.faults.rig import IN_SYNC_MIN, Rig

TOPIC = "orders"
PARTITIONS = 6
TIMEOUT_S = 4.0  # of a request
PAUSE_S = (TIMEOUT_S - 0.1, TIMEOUT_S + 0.8)
BETWEEN_S = (1.5, 3.0)
RATE = 40.0  # messages a second of each producer
FLUSH_S = 60
READ_S = 60.0
SETTINGS = {
    "enable.idempotence": True, "acks": "all", "request.timeout.ms": int(TIMEOUT_S * 1000),
    "socket.timeout.ms": int(TIMEOUT_S * 1000), "retry.backoff.max.ms": 500, "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500, "socket.connection.setup.timeout.ms": 2_000,
    "topic.metadata.refresh.interval.ms": 5_000,
    "debug": "eos,msg",  # it tells there what it was told
}  # fmt: skip


class Told(logging.Handler):
    """What brokers told a producer, by what it logs of that."""

    def __init__(self) -> None:
        super().__init__()
        self.gaps = 0  # it begins a new epoch
        self.asked_again = 0  # it sends the batch again, as after any change of the leader
        self.logger = logging.Logger("librdkafka", logging.DEBUG)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        self.gaps += "skipped sequence numbers" in line and line.startswith("ERRSEQ")
        self.asked_again += "encountered error: Broker: Not leader" in line


class Sending:
    """One producer: numbered messages to any partition, until it is over."""

    def __init__(self, bootstrap: str, name: str, over: threading.Event) -> None:
        self.acknowledged: set[bytes] = set()
        self.told = Told()
        self._producer: Any = Producer({"bootstrap.servers": bootstrap, **SETTINGS}, logger=self.told.logger)
        self._name, self._over, self._rng = name, over, random.Random(name)
        self.thread = threading.Thread(target=self._send, name=name)

    def _send(self) -> None:
        number = 0
        while not self._over.is_set():
            value = f"{self._name}/{number}".encode()
            with suppress(BufferError):
                self._producer.produce(
                    TOPIC, value, partition=self._rng.randrange(PARTITIONS), on_delivery=self._delivered
                )
                number += 1
            self._producer.poll(self._rng.expovariate(RATE))
        self._producer.flush(FLUSH_S)

    def _delivered(self, error: object, message: Any) -> None:
        if error is None:
            self.acknowledged.add(message.value())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make faults-pauses", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--producers", type=int, default=8)
    parser.add_argument("--seed", default="1")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="runnel-pauses-") as folder, Rig(Path(folder)) as rig:
        rig.create_topic(TOPIC, PARTITIONS, 3, {"min.insync.replicas": str(IN_SYNC_MIN)})
        over = threading.Event()
        senders = [Sending(rig.bootstrap, f"{options.seed}-{n}", over) for n in range(options.producers)]
        for sender in senders:
            sender.thread.start()
        try:
            pauses = pause(rig, random.Random(options.seed), time.monotonic() + options.seconds)
        finally:
            over.set()
            for sender in senders:
                sender.thread.join()
        rig.wait_whole([TOPIC])
        found = read_all(rig)
    acknowledged = set().union(*(sender.acknowledged for sender in senders))
    doubled, lost = sorted(value for value, count in found.items() if count > 1), acknowledged - found.keys()
    gaps, again = sum(each.told.gaps for each in senders), sum(each.told.asked_again for each in senders)
    print(f"{pauses} pauses, {len(acknowledged)} messages acknowledged, {len(lost)} lost, {len(doubled)} doubled")
    print(f"batches that came too early: {gaps} were told of a gap, {again} to come again")
    for value in (*doubled, *sorted(lost)):
        print(f"  {value.decode()} lies {found[value]} times in the log")
    return 1 if doubled or lost or gaps or not acknowledged else 0


def pause(rig: Rig, rng: random.Random, until: float) -> int:
    """Pause one broker after the other; how often that was."""
    count = 0
    while time.monotonic() < until:
        with rig.brokers[rng.choice(sorted(rig.brokers))].paused():
            time.sleep(rng.uniform(*PAUSE_S))
        time.sleep(rng.uniform(*BETWEEN_S))
        rig.wait_whole([TOPIC])
        count += 1
        print(f"  {count} pauses, {max(0.0, until - time.monotonic()):.0f} s to go", file=sys.stderr, flush=True)
    return count


def read_all(rig: Rig) -> Counter[bytes]:
    """How often each message lies in the log."""
    places = [TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
    reader: Any = Consumer({"bootstrap.servers": rig.bootstrap, "group.id": "last-word", "enable.auto.commit": False})
    ends = {place.partition: reader.get_watermark_offsets(place, FLUSH_S)[1] for place in places}
    found, read, until = Counter[bytes](), dict.fromkeys(ends, 0), time.monotonic() + READ_S
    reader.assign(places)
    while any(read[number] < end for number, end in ends.items()):
        if time.monotonic() > until:
            raise RuntimeError(f"could not read everything within {READ_S:.0f} s: {read} of {ends}")
        for message in reader.consume(1_000, 0.5):
            if message.error() is None:
                found[message.value()] += 1
                read[message.partition()] = message.offset() + 1
    reader.close()
    return found


if __name__ == "__main__":
    sys.exit(main())
