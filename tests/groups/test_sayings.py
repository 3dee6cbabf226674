"""What members say of themselves is bounded, alone and together."""

import pytest

from runnel.groups import sayings
from runnel.groups.classic import ClassicGroup
from runnel.groups.roster import Member
from runnel.groups.values import ConsumerHeartbeat, GroupConfig, Join, OfferedProtocol, Sync
from runnel.model.errors import GroupFull, InvalidRequest

CONFIG = GroupConfig(member_bytes_max=100_000, said_bytes_max=150_000)


def join(size: int) -> Join:
    return Join("g", "m", None, "", "", 10_000, 10_000, "consumer", (OfferedProtocol("range", bytes(size)),))


def group_of(*sizes: int) -> ClassicGroup:
    group = ClassicGroup("other")
    for number, size in enumerate(sizes):
        group.roster.add(Member.of_join(f"m{number}", join(size)))
    return group


def test_a_member_that_says_too_much_is_refused() -> None:
    for request in (
        join(100_001), ConsumerHeartbeat("g", "m", 0, topic_names=("t" * 60_000, "u" * 60_000)),
        Sync("g", 1, "m", assignments=(("m", b""), ("n", bytes(100_001)))),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest, match="group-member-bytes-max"):
            sayings.check(request, [], CONFIG)
    sayings.check(join(99_000), [], CONFIG)


def test_what_all_members_of_a_shard_say_is_bounded_together() -> None:
    groups = [group_of(50_000, 20_000), group_of(20_000)]
    sayings.check(join(50_000), groups, CONFIG)
    with pytest.raises(GroupFull, match="group-bytes-max"):
        sayings.check(join(70_000), groups, CONFIG)


def test_members_that_say_little_join_all_the_same() -> None:
    sayings.check(join(1_000), [group_of(150_000)], CONFIG)
