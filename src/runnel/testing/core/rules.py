"""Rules that the model's own glue keeps, each with a switch: a mutant turns one off.

What the pure cores keep is switched off by patching the cores themselves.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """All on, unless a mutant says otherwise."""

    image_version: bool = True  # a write is refused if it was decided on an old image
    controller_epoch: bool = True  # a write of an earlier controller is refused
    node_version: bool = True  # a write is refused if it changes a topic that was changed since it was read
    held_is_synced: bool = True  # a follower asks at what its flush mode made durable
    diverged_first: bool = True  # a question that left the leader's log tells nothing about what is held
    read_to_high: bool = True  # readers stop at the high watermark
    ack_at_high: bool = True  # acks=all is answered at the high watermark
    duplicate_at_high: bool = True  # a duplicate is acknowledged when its original is committed
    high_kept: bool = True  # a new leader begins with the high watermark it knew as follower, not with its end
    withdraw_if_sure: bool = True  # a proposal is taken back only if no try of it can still be stored
    role_by_life: bool = True  # a broker has no role before it is admitted
    damage_told: bool = True  # a broker names the copies that it lost


ALL = Rules()
