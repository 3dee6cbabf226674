"""Who is alive, and who is controller: the operations by which a broker joins.

Pure. The version of a broker's epoch node is its epoch; the version of /controller-epoch is the controller's.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from runnel.cluster import nodes
from runnel.cluster.image import Broker, Controller
from runnel.cluster.nodes import ControllerNode
from runnel.cluster.store import Create, Delete, Node, Op, Set
from runnel.model.errors import BrokerIdInUse
from runnel.model.ids import BrokerId, Epoch


def register(broker: Broker, last: Node | None, present: Node | None) -> tuple[Broker, Sequence[Op]]:
    """Begin a broker's new life: a higher epoch, and a registration that ends with the session.

    `last` is its epoch node, `present` its registration, if there is one. A registration of an earlier life is
    replaced in the same multi, never adopted: it would vanish with the session that made it. The new one is fenced
    until the controller has admitted it: whatever the broker led in its earlier life, it leads in another epoch now.
    """
    epoch = Epoch(0 if last is None else last.version + 1)
    registered = replace(broker, epoch=epoch, fenced=True)
    path, epoch_path = nodes.broker_path(broker.id), nodes.broker_epoch_path(broker.id)
    ops: list[Op] = [Create(epoch_path, b"") if last is None else Set(epoch_path, b"", last.version)]
    if present is not None:
        _refuse_other(broker, nodes.read_broker(path, present))
        ops.append(Delete(path, present.version))
    return registered, [*ops, Create(path, nodes.broker_value(registered), ephemeral=True)]


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
