"""The replicas on this broker: opened, given their roles, reconfigured and removed as the cluster's image says.

Rule 1: data is removed for two reasons only: the image proves that its topic was deleted, or that this very topic has
        its replicas elsewhere. A folder that no topic knows is reported and left alone.
Rule 2: a partition that can't be opened, or whose files went out of hand, fails alone, and is tried again; the broker
        serves the others.
Rule 3: nothing has a role before the image says that this broker serves: what an image said to an earlier life of it,
        it did not say to this one.
Rule 4: a copy is set aside before it is removed. It loses its name by that, and is nobody's: what comes back from then
        on is another copy, and work off the loop that was still under way for it finds no place to write to. A copy
        that is elsewhere is set aside if that is so by the newest image and nobody has it open: it may have come back.
Rule 5: what was set aside is removed beside all else: a large copy takes long to remove, and who leads what must be
        followed meanwhile. Its new name is durable before: no power loss brings half a copy back under the old one.
        What can't be removed is tried again, and costs nothing else.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain, count
from uuid import UUID

from runnel.broker.internal import INTERNAL
from runnel.broker.turns import by_turns, side_by_side
from runnel.cluster.config_rules import topic_config
from runnel.cluster.image import GROUP, NO_LEADER, VIEW_OF, Change, Image, Topic
from runnel.cluster.image import Partition as PartitionImage
from runnel.log.checkpoint import sync_dir
from runnel.log.files import Files
from runnel.model.errors import (
    Corruption,
    LeaderNotAvailable,
    NotLeader,
    ReadOnlyTopic,
    RunnelError,
    StorageFailed,
    UnknownTopic,
)
from runnel.model.ids import BrokerId, PartitionKey, TopicId
from runnel.model.seams import Clock, Disk
from runnel.model.topic_config import TopicConfig
from runnel.net.eager import start
from runnel.replica.partition import Partition, Role, Room, anywhere

FOLDER = "partitions"
GONE = ".gone"  # behind the name of a copy that was set aside
AT_ONCE = 8  # logs opened or closed side by side: their syncs share what they wait for; more do not make a disk faster

logger = logging.getLogger("runnel.partitions")


class Partitions:
    """All partitions that this broker holds."""

    def __init__(
        self, me: BrokerId, defaults: TopicConfig, *,
        disk: Disk, files_max: int, clock: Clock, on_fatal: Callable[[BaseException], None],
        on_damage: Callable[[Partition], None] = lambda _: None, note_open: Callable[[int], None] = lambda _: None,
        room: Room = anywhere,
    ) -> None:  # fmt: skip
        self._me = me
        self._defaults = defaults
        self._disk = disk
        self._files = Files(disk, files_max=files_max)
        self._clock = clock
        self._on_fatal = on_fatal
        self._on_damage = on_damage
        self._room = room
        self._note_open = note_open  # so many more, or fewer, than before
        self._image: Image
        self._open: dict[PartitionKey, Partition] = {}
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._failed: dict[PartitionKey, RunnelError] = {}
        self.has_leftovers = False  # whether copies were set aside, and wait to be removed
        self._turn = asyncio.Lock()  # nobody opens or closes while another does: a folder has one log at a time

    async def start(self, image: Image) -> None:
        """Open everything that the image places here."""
        self._image = image
        await self._disk.offload(lambda: self._disk.make_dir(FOLDER))
        await self._open_all(image.topics.values())
        await self._tidy_up()

    async def follow(self, change: Change) -> list[Partition]:
        """Make it so, after the image changed; returns the replicas whose partition is another one now, or gone."""
        self._image = change.after
        changed = [topic for topic in change.delta.topics.values() if topic is not None]
        begins = self._serves(change.after) and not self._serves(change.before)
        # First: a smaller ISR must not meet the minimum of before, or more would be committed than its members hold.
        # A broker's dynamic settings are defaults of all its topics.
        defaults = any(not key.startswith(GROUP) for key in change.delta.configs)
        for topic in change.after.topics.values() if defaults else changed:
            if defaults or not _is_set_as_before(topic, change.before):
                self._reconfigure(topic)
        affected = await self._apply(change.after.topics.values() if begins else changed)
        affected += await self._open_all(changed)
        for topic in changed:
            affected += await self._close_moved(topic)
        affected += await self._close_topics(
            {topic_id for topic_id, topic in change.delta.topics.items() if topic is None}
        )
        return list(dict.fromkeys(affected))

    async def try_again(self) -> list[Partition]:
        """Open what could not be opened before: a disk may have room again; returns what could be opened."""
        failed = {key.topic_id for key in self._failed}
        opened = await self._open_all([topic for topic_id, topic in self._image.topics.items() if topic_id in failed])
        return [*opened, *await self._tell_again()]

    async def _tell_again(self) -> list[Partition]:
        """Give a role to those that could not take one, because nobody knew what their logs held."""
        if not self._serves(self._image):
            return []
        untold = [partition for partition in self if partition.image is None and not partition.log.is_lost]
        for partition in untold:
            if (image := self._placed(partition.key)) is not None:
                await partition.apply(image)
        return untold

    async def set_deleted_aside(self, topic_ids: Collection[TopicId]) -> None:
        """Close and set aside what this broker keeps of deleted topics."""
        await self._close_topics(topic_ids)
        self.has_leftovers = True  # even if that fails half-way
        await self._disk.offload(lambda: _set_aside(self._disk, _folders_of(self._disk, topic_ids)))

    async def remove_leftovers(self) -> set[TopicId]:
        """Remove the copies that were set aside; returns the topics of which something could not be removed."""
        if not self.has_leftovers:
            return set()
        self.has_leftovers = False  # more may be set aside meanwhile
        try:
            failed = await self._disk.offload(lambda: _remove_leftovers(self._disk))
        except OSError:
            self.has_leftovers = True
            raise
        self.has_leftovers = self.has_leftovers or bool(failed)
        return {topic_id for name in failed if (topic_id := _topic_of(name)) is not None}

    async def close(self) -> bool:
        """Close every log; returns whether all of them could be closed cleanly."""

        async def close_one(partition: Partition) -> bool:
            try:
                await partition.close()
            except RunnelError as error:
                logger.error("%s did not close cleanly: %s", partition.name, error)
                return False
            return True

        clean = await side_by_side(list(self._open.values()), close_one, AT_ONCE)
        self._note_open(-len(clean))
        return all(clean)

    @property
    def damaged(self) -> list[PartitionKey]:
        """The partitions whose copy here is not whole, and that other brokers may have a whole copy of."""
        rotten = [partition.key for partition in self._open.values() if partition.log.is_damaged]
        return [key for key in rotten if len(self._image.topics[key.topic_id].partitions[key.number].replicas) > 1]

    @property
    def failed(self) -> list[PartitionKey]:
        """The partitions that should be open here, and can't be opened, or read any more."""
        return [*self._failed, *(partition.key for partition in self if partition.log.is_lost)]

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._open.values()))

    def failures(self, topic: Topic) -> Iterator[tuple[int, RunnelError]]:
        """The partitions of a topic that nobody leads because they can't be opened here, each with the reason."""
        for number, image in enumerate(topic.partitions):
            error = self._failed.get(PartitionKey(topic.id, number))
            if error is not None and image.leader in (self._me, NO_LEADER):
                yield number, error

    def opened(self, key: PartitionKey) -> Partition | None:
        """The partition if it is open here, whatever its role."""
        return self._open.get(key)

    def find(self, topic: str, number: int) -> Partition:
        """The partition, if this broker leads it; the error says why not."""
        partition = self._by_name.get((topic, number))
        if partition is None or partition.role is not Role.LEADER:
            raise self._why_not(self._image.topic_named(topic), number)
        return partition

    def find_by_id(self, topic_id: TopicId, number: int) -> Partition:
        partition = self._open.get(PartitionKey(topic_id, number))
        if partition is None or partition.role is not Role.LEADER:
            raise self._why_not(self._image.topic_with_id(topic_id), number)
        return partition

    def find_readable(self, topic: str, number: int) -> Partition:
        """The partition, if this broker leads or follows it."""
        partition = self._by_name.get((topic, number))
        if partition is None or partition.role is Role.IDLE:
            raise self._why_not(self._image.topic_named(topic), number)
        return partition

    def find_readable_by_id(self, topic_id: TopicId, number: int) -> Partition:
        partition = self._open.get(PartitionKey(topic_id, number))
        if partition is None or partition.role is Role.IDLE:
            raise self._why_not(self._image.topic_with_id(topic_id), number)
        return partition

    def effective(self, topic: Topic) -> TopicConfig:
        """The settings in force for a topic on this broker."""
        return topic_config(self._image, topic, self._me, self._defaults)

    def _why_not(self, topic: Topic, number: int) -> RunnelError:
        if topic.is_view:
            source = topic.config[VIEW_OF]
            return ReadOnlyTopic(f"topic {topic.name!r} is a view of {source!r}: use that topic for all but reading")
        if not 0 <= number < len(topic.partitions):
            return UnknownTopic(f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, not {number}")
        key = PartitionKey(topic.id, number)
        if key in self._failed:
            return self._failed[key]
        if topic.partitions[number].leader != self._me:
            return NotLeader(f"{topic.name}-{number} is led by broker {topic.partitions[number].leader}")
        return LeaderNotAvailable(f"{topic.name}-{number} is being opened: try again")

    # --- following

    def _serves(self, image: Image) -> bool:
        broker = image.brokers.get(self._me)
        return broker is not None and broker.alive

    async def _apply(self, topics: Iterable[Topic]) -> list[Partition]:
        """Give everything that is open the role that it has now. Who has to wait for its log holds up nobody else."""
        if not self._serves(self._image):
            return []
        changed: list[Partition] = []
        waiting: list[asyncio.Task[None]] = []
        async for key, image in by_turns(_partitions_of(topics)):
            partition = self._open.get(key)
            if partition is not None and partition.image != image:
                changed.append(partition)
                _, task = start(partition.apply(image))
                if task is not None:
                    waiting.append(task)
        if waiting:
            await asyncio.gather(*waiting)
        return changed

    async def _open_all(self, topics: Iterable[Topic]) -> list[Partition]:
        """Open what should be open here and is not; returns what could be opened."""
        async with self._turn:
            missing = list(self._missing(topics))
            if missing:
                folders = [str(PartitionKey(topic.id, number)) for topic, number, _ in missing]
                await self._disk.offload(lambda: _make_folders(self._disk, folders))
            found = await side_by_side(missing, lambda one: self._open_partition(*one), AT_ONCE)
        return [partition for partition in found if partition is not None]

    def _missing(self, topics: Iterable[Topic]) -> Iterator[tuple[Topic, int, PartitionImage]]:
        """What should be open here and is not, by the newest image: some may be deleted or have moved meanwhile."""
        for topic in filter(None, [self._image.topics.get(topic.id) for topic in topics]):
            for number, image in enumerate(topic.partitions):
                if self._me in image.replicas and PartitionKey(topic.id, number) not in self._open:
                    yield topic, number, image

    async def _open_partition(self, topic: Topic, number: int, image: PartitionImage) -> Partition | None:
        key = PartitionKey(topic.id, number)
        try:
            partition = await Partition.open(
                topic.name, key, f"{FOLDER}/{key}", self.effective(topic),
                me=self._me, disk=self._disk, clock=self._clock, on_fatal=self._on_fatal,
                on_damage=self._on_damage, files=self._files, internal=topic.name in INTERNAL,
            )  # fmt: skip
        except (StorageFailed, Corruption, OSError) as error:
            failure = StorageFailed(f"{topic.name}-{number} can't be opened: {error}")
            self._failed[key] = failure
            logger.error("%s", failure)
            return None
        self._failed.pop(key, None)
        partition.room = self._room
        self._note_open(1)
        self._open[key] = partition
        self._by_name[topic.name, number] = partition
        if self._serves(self._image):
            await partition.apply(self._placed(key) or image)  # the image may have changed meanwhile
        return partition

    def _placed(self, key: PartitionKey) -> PartitionImage | None:
        topic = self._image.topics.get(key.topic_id)
        return None if topic is None else topic.partitions[key.number]

    def _reconfigure(self, topic: Topic) -> None:
        config = self.effective(topic)
        for number in range(len(topic.partitions)):
            partition = self._open.get(PartitionKey(topic.id, number))
            if partition is not None:
                partition.reconfigure(config)

    async def _close_topics(self, topic_ids: Collection[TopicId]) -> list[Partition]:
        if not topic_ids:
            return []
        async with self._turn:
            self._failed = {key: error for key, error in self._failed.items() if key.topic_id not in topic_ids}
            return await self._close([key for key in self._open if key.topic_id in topic_ids])

    async def _close(self, keys: Collection[PartitionKey]) -> list[Partition]:
        """Close some that are gone from here. What is to be removed is not synced first: that may be much."""
        closed = [self._open.pop(key) for key in keys]
        for partition in closed:
            if self._by_name.get((partition.topic, partition.key.number)) is partition:
                del self._by_name[partition.topic, partition.key.number]
        await side_by_side(closed, self._end, AT_ONCE)
        self._note_open(-len(closed))
        return closed

    async def _end(self, partition: Partition) -> None:
        known = self._image.topics.get(partition.key.topic_id)
        try:
            if known is None and partition.key.topic_id not in self._image.deleted:
                await partition.close()  # nothing proves that it was deleted: its data stays
            else:
                await partition.discard()
        except StorageFailed as error:
            logger.error("%s did not close cleanly: %s", partition.name, error)

    async def _close_moved(self, topic: Topic) -> list[Partition]:
        """Close the copies of partitions that have their replicas elsewhere now, and set them aside."""
        moved = [key for key in _elsewhere(topic, self._me) if key in self._open or key in self._failed]
        if not moved:
            return []
        async with self._turn:
            closed = await self._close([key for key in moved if key in self._open])
            for key in moved:
                self._failed.pop(key, None)
            await self._set_aside(moved)
        return closed

    async def _tidy_up(self) -> None:
        """Set aside what moved elsewhere while this broker was away; report what nobody knows."""
        names = await self._disk.offload(lambda: self._disk.list(FOLDER))
        image = self._image
        moved = {str(key): key for topic in image.topics.values() for key in _elsewhere(topic, self._me)}
        async with self._turn:
            await self._set_aside([moved[name] for name in names if name in moved])
        leftovers = [name for name in names if name.endswith(GONE)]  # of an earlier life
        self.has_leftovers = self.has_leftovers or bool(leftovers)
        known = image.topics.keys() | image.deleted.keys()
        for name in names:
            if _topic_of(name) not in known and name not in leftovers:
                logger.warning(
                    "%s/%s belongs to no topic: it is left alone; remove it by hand if you can", FOLDER, name
                )

    async def _set_aside(self, keys: Collection[PartitionKey]) -> None:
        """Rule 4, for who has the turn."""
        names = [str(key) for key in keys if self._is_elsewhere(key)]
        if not names:
            return
        logger.info("removing %d copies of partitions whose replicas are elsewhere now", len(names))
        try:
            await self._disk.offload(lambda: _set_aside(self._disk, names))
        except OSError as error:
            logger.error("copies that are elsewhere now could not be set aside; the next start tries again: %s", error)
        self.has_leftovers = True

    def _is_elsewhere(self, key: PartitionKey) -> bool:
        placed = self._placed(key)
        return placed is not None and self._me not in placed.replicas and key not in self._open


def _is_set_as_before(topic: Topic, image: Image) -> bool:
    before = image.topics.get(topic.id)
    return before is not None and before.config == topic.config


def _partitions_of(topics: Iterable[Topic]) -> Iterator[tuple[PartitionKey, PartitionImage]]:
    return (
        (PartitionKey(topic.id, number), image) for topic in topics for number, image in enumerate(topic.partitions)
    )


def _elsewhere(topic: Topic, me: BrokerId) -> Iterator[PartitionKey]:
    """The partitions of a topic that have no replica here."""
    return (PartitionKey(topic.id, n) for n, image in enumerate(topic.partitions) if me not in image.replicas)


def _make_folders(disk: Disk, names: list[str]) -> None:
    """Make those that are new with one sync for all; what can't be made fails alone, when it is opened."""
    with suppress(OSError):
        disk.make_dirs(FOLDER, names)
    sync_dir(disk, FOLDER)


def _set_aside(disk: Disk, names: list[str]) -> None:
    for name in names:
        if disk.exists(f"{FOLDER}/{name}"):  # what could not be opened may not even have a folder
            disk.rename(f"{FOLDER}/{name}", f"{FOLDER}/{_name_aside(disk, name)}")
    sync_dir(disk, FOLDER)


def _name_aside(disk: Disk, name: str) -> str:
    """One that nobody has: the last copy that was set aside may still be there."""
    names = chain([f"{name}{GONE}"], (f"{name}.{number}{GONE}" for number in count(1)))
    return next(free for free in names if not disk.exists(f"{FOLDER}/{free}"))


def _remove_leftovers(disk: Disk) -> list[str]:
    """Returns those that could not be removed."""
    leftovers = [name for name in disk.list(FOLDER) if name.endswith(GONE)]
    sync_dir(disk, FOLDER)  # a kill may have come before it, or this may have come in between
    failed = []
    for name in leftovers:
        try:
            disk.remove(f"{FOLDER}/{name}")
        except OSError as error:
            logger.error("%s/%s is not needed any more, and could not be removed yet: %s", FOLDER, name, error)
            failed.append(name)
    sync_dir(disk, FOLDER)
    return failed


def _topic_of(folder: str) -> TopicId | None:
    try:
        return TopicId(UUID(folder.rpartition("-")[0]))
    except ValueError:
        return None


def _folders_of(disk: Disk, topic_ids: Collection[TopicId]) -> list[str]:
    return [name for name in disk.list(FOLDER) if _topic_of(name) in topic_ids and not name.endswith(GONE)]
