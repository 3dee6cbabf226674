"""Who is alive, and who is controller: the operations by which a broker joins.

Pure. The version of a broker's epoch node is its epoch; the version of /controller-epoch is the controller's.

Rule 1: every life of a broker has an epoch of its own, higher than all before. It begins as `starting`: it has no role
        until the controller has admitted it.
Rule 2: a life is clean if the data directory says that the very last life ended in an orderly way. A folder that slept
        through a life in between says nothing.
Rule 3: a folder is known once the controller has admitted a broker with it, not before: whatever had to be concluded
        from a new one has been written by then.
Rule 4: who says what it said before writes nothing. Every write makes a new image, and whatever the controller decided
        on the one before is refused: a broker that repeats itself would keep it from deciding anything.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from runnel.cluster import nodes
from runnel.cluster.image import Broker, BrokerState, Controller
from runnel.cluster.nodes import ControllerNode, DirectoryNode
from runnel.cluster.store import Create, Delete, Node, Op, Set
from runnel.model.errors import BrokerIdInUse
from runnel.model.ids import BrokerId, Epoch, PartitionKey

DAMAGED_MAX: Final = 5_000  # partitions that a registration names; with more, the whole disk counts as lost


class Identity(msgspec.Struct, frozen=True):
    """Whose a data directory is, and how the last life in it ended."""

    cluster_id: str
    broker_id: BrokerId
    directory: str  # drawn when the folder was first used
    clean_epoch: Epoch | None = None  # of the life that ended in an orderly way; None: it did not, or is not over


class Past(msgspec.Struct, frozen=True):
    """What the store knows of a broker's earlier lives."""

    epoch: Node | None  # whose version is the epoch of the last life
    directory: Node | None
    present: Node | None  # a registration that is still there


def register(broker: Broker, identity: Identity, past: Past) -> tuple[Broker, Sequence[Op]]:
    """Begin a broker's new life: a higher epoch, and a registration that ends with the session.

    A registration of an earlier life is replaced in the same multi, never adopted: it would vanish with the session
    that made it.
    """
    path, epoch_path = nodes.broker_path(broker.id), nodes.broker_epoch_path(broker.id)
    registered = _registration(broker, identity, past)
    last = past.epoch
    ops: list[Op] = [Create(epoch_path, b"") if last is None else Set(epoch_path, b"", last.version)]
    if past.present is not None:
        _refuse_other(broker, nodes.read_broker(path, past.present))
        ops.append(Delete(path, past.present.version))
    return registered, [*ops, Create(path, nodes.broker_value(registered), ephemeral=True)]


def _registration(broker: Broker, identity: Identity, past: Past) -> Broker:
    last = None if past.epoch is None else past.epoch.version
    known = past.directory
    return replace(
        broker,
        epoch=Epoch(0 if last is None else last + 1),
        state=BrokerState.STARTING,
        clean=last is None or identity.clean_epoch == last,
        new_disk=known is not None and _directory(broker.id, known) != identity.directory,
        directory=identity.directory,
        directory_version=0 if known is None else known.version + 1,
    )


def declare(mine: Broker, state: BrokerState | None, damaged: Sequence[PartitionKey]) -> Broker:
    """A registration that says how far its broker is (None: as far as before), and which of its copies are lost.

    The very same one if that is nothing new (rule 4).
    """
    named = damaged if len(damaged) <= DAMAGED_MAX else ()
    declared = replace(
        mine,
        state=state or mine.state,
        damaged=tuple(dict.fromkeys((*mine.damaged, *named))),
        new_disk=mine.new_disk or len(named) < len(damaged),
    )
    return mine if declared == mine else replace(declared, version=mine.version + 1)


def _directory(broker: BrokerId, node: Node) -> str:
    return nodes.decode(nodes.directory_path(broker), node.value, DirectoryNode).directory


def _refuse_other(broker: Broker, present: Broker) -> None:
    if dict(present.listeners) != dict(broker.listeners):
        where = ", ".join(f"{name} {end.host}:{end.port}" for name, end in sorted(present.listeners.items()))
        raise BrokerIdInUse(
            f"broker id {broker.id} is in use by another broker ({where}): give this one another --broker-id, "
            "or, if that one is dead, wait until its session ends"
        )


def is_free(node: Node | None, broker: BrokerId, session: int) -> bool:
    """Whether a broker may claim the controller's place: nobody has it, or an earlier life of the same broker."""
    if node is None:
        return True
    holder = nodes.decode(nodes.CONTROLLER_PATH, node.value, ControllerNode).broker
    return holder == broker and node.session != session


def claim(controller: Controller, stale: Node | None) -> Sequence[Op]:
    """Become controller. Setting the epoch node fences every earlier controller's writes."""
    value = nodes.encode(ControllerNode(controller.broker))
    return [
        *([] if stale is None else [Delete(nodes.CONTROLLER_PATH, stale.version)]),
        Create(nodes.CONTROLLER_PATH, value, ephemeral=True),
        Set(nodes.CONTROLLER_EPOCH_PATH, value, controller.epoch - 1),
    ]
