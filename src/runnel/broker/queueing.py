"""All that delivers the messages of queues, put together: what belongs to one broker, begun and ended in order."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from runnel.broker.calls import Calls
from runnel.broker.deliveries import Deliveries
from runnel.broker.drive import Parts as DriveParts
from runnel.broker.graves import Graves
from runnel.broker.keepers import Keepers
from runnel.broker.leaving import Exits, Targets
from runnel.broker.lengths import Lengths
from runnel.broker.messages import Messages
from runnel.broker.once import Once, OnceMessage
from runnel.broker.partitions import Partitions
from runnel.broker.queues import Queues
from runnel.broker.redrive import Redrives
from runnel.broker.resuming import Resuming
from runnel.broker.schedule import Schedule
from runnel.broker.sending import Sending
from runnel.broker.sending_once import SendingOnce
from runnel.broker.sources import Sources
from runnel.cluster.image import Change, Image
from runnel.cluster.topic_rules import NewTopic
from runnel.model.ids import Life, TopicId
from runnel.model.schedule import Parked
from runnel.model.seams import Clock, Rng
from runnel.queues.values import Target


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What queues need of their broker."""

    partitions: Partitions
    calls: Calls
    keepers: Keepers
    once: Once
    schedule: Schedule
    sending: Sending
    sending_once: SendingOnce
    image: Callable[[], Image]  # the newest
    life: Callable[[], Life]
    make_topics: Callable[[Sequence[NewTopic]], Awaitable[None]]
    share_began: Callable[[str, TopicId], Awaitable[int]]  # with how many partitions a group came to a topic
    clock: Clock
    rng: Rng


class Queueing:
    """The parts, each of which follows the image."""

    def __init__(self, around: Surroundings) -> None:
        partitions, calls, keepers, image = around.partitions, around.calls, around.keepers, around.image
        clock, rng, once = around.clock, around.rng, around.once
        messages = Messages()
        self._schedule = around.schedule
        self.sources = Sources(image)
        exits = Exits(messages, once, self._park, Targets(once, image, around.make_topics), clock, rng)
        self.deliveries = Deliveries(partitions, keepers, messages, exits, clock, rng, self.sources, around.share_began)
        drives = DriveParts(keepers, messages, once, image, clock, rng)
        self.redrives = Redrives(partitions, self.sources, calls, drives)
        self.graves = Graves(partitions, calls, image, self.sources, self.redrives.counts)
        self.queues = Queues(
            calls.me, self.deliveries, self.sources, around.sending, around.sending_once, calls, messages, image,
            around.life, rng, self.graves.count,
        )  # fmt: skip
        self._lengths = Lengths(partitions, self.deliveries, self.sources)
        self._resuming = Resuming(calls.me, keepers, self.deliveries, self.redrives)

    async def _park(self, target: Target, due_ms: int, messages: Sequence[OnceMessage]) -> None:
        """Have messages appended when they are due; a second time does no harm."""
        parked = [Parked(one.id, due_ms, one.key, one.value, one.headers, one.floor) for one in messages]
        await self._schedule.park(target.topic_id, target.partition, parked)

    def start(self, image: Image) -> None:
        self.deliveries.start(image)
        self.queues.start(image)
        self._lengths.start(image)
        self._resuming.start(image)

    def follow(self, change: Change) -> None:
        self.deliveries.follow(change)
        self.queues.follow(change)
        self.redrives.follow(change)
        self._lengths.follow(change)
        self._resuming.follow(change)

    def sweep(self) -> None:
        """Close what nobody uses."""
        self.deliveries.sweep()
        self.redrives.sweep()

    def close(self) -> None:
        self._resuming.close()
        self.redrives.close()
        self.deliveries.close()
