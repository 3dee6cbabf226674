"""Consuming by offset: who belongs to a group, who reads which partition, and how far each group has read.

Law: everything here decides and nothing here acts. There is no clock, no socket and no disk; time comes in as an
argument, and every verb returns a Step: records to append, and replies that may leave once those are durable.
"""

from runnel.groups.shard import GroupShard
from runnel.groups.values import GroupConfig, TopicView
from runnel.model.step import Reply, Step

__all__ = ["GroupConfig", "GroupShard", "Reply", "Step", "TopicView"]
