"""Whose data directory this is: `identity.json` beside the partitions.

Rule 1: a folder belongs to one broker of one cluster for ever. Another one refuses it before it touches anything.
Rule 2: how the last life ended is told once: before a broker registers, the mark of an orderly end is gone, synced.
Rule 3: the mark is written after every log was closed, and names the life that it is about.
"""

import logging
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from runnel.cluster.membership import Identity
from runnel.log.checkpoint import read_small, sync, sync_dir
from runnel.model.errors import Fatal, InvalidConfig, StorageFailed
from runnel.model.ids import BrokerId, Epoch
from runnel.model.seams import Disk, Rng

FILE: Final = "identity.json"
NEW_FILE: Final = "identity.json.new"
HERE: Final = ""  # the data directory itself

logger = logging.getLogger("runnel.identity")


async def claim(disk: Disk, cluster_id: str, broker: BrokerId, rng: Rng) -> Identity:
    """The folder's identity as the last life left it; on the disk, a life that is not over has begun."""
    drawn = Identity(cluster_id, broker, str(UUID(bytes=rng.token(16), version=4)))
    try:
        return await disk.offload(lambda: _claim(disk, drawn))
    except OSError as error:
        advice = "see that the disk has room and can be written, then start again"
        raise StorageFailed(f"{FILE} in the data directory can't be used ({error.strerror}): {advice}") from error


async def mark_clean(disk: Disk, identity: Identity, epoch: Epoch) -> None:
    """Say that this life ended in an orderly way. Without the mark the next start is slower, and as safe."""
    try:
        await disk.offload(lambda: _write(disk, replace(identity, clean_epoch=epoch)))
    except (OSError, Fatal) as error:
        logger.warning("the data directory could not be marked as closed in an orderly way: %s", error)


def _claim(disk: Disk, new: Identity) -> Identity:
    found = _read(disk) or new
    if (found.cluster_id, found.broker_id) != (new.cluster_id, new.broker_id):
        raise InvalidConfig(
            f"the data directory belongs to broker {found.broker_id} of cluster {found.cluster_id}, "
            f"this is broker {new.broker_id} of cluster {new.cluster_id}: "
            "name another --data, or the right --broker-id and --store"
        )
    _write(disk, replace(found, clean_epoch=None))
    return found


def _read(disk: Disk) -> Identity | None:
    found = read_small(disk, FILE)
    try:
        return None if found is None else msgspec.json.decode(found, type=Identity)
    except msgspec.MsgspecError as error:
        raise InvalidConfig(
            f"{FILE} in the data directory can't be read ({error}): put back a copy of it. If there is none, remove it:"
            " the partitions in this folder then count as lost, and are copied from other brokers"
        ) from None


def _write(disk: Disk, identity: Identity) -> None:
    file = disk.open(NEW_FILE, create=True)
    try:
        file.truncate(0)
        file.write([msgspec.json.encode(identity)], 0)
        sync(file)
    finally:
        file.close()
    disk.rename(NEW_FILE, FILE)
    sync_dir(disk, HERE)
