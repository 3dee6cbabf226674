"""Members that outlived the broker that ran them, as long as nobody says so."""

from runnel.groups.turn import Turn
from runnel.model.members import host_of


def is_orphan(name: str, turn: Turn) -> bool:
    """Whether a member of this client id or member id was run by a broker whose life is over."""
    life = host_of(name)
    return life is not None and turn.topics.is_over(life)
