"""How far copies are, out of what the brokers' disks hold."""

from tests.client.views import view

from runnel.cli.cluster_watch import Copy, Progress, copies_of
from runnel.client.admin import Disk
from runnel.client.cluster_admin import Reassignment
from runnel.client.metadata import TopicPartition

MIB = 2**20
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def test_a_copy_is_compared_with_the_leader() -> None:
    seen = view([1, 2, 3], {"a": [(1, [2, 3, 1], [1, 3])]})
    disks = {1: Disk({A0: 100}, -1, -1), 2: Disk({A0: 25}, -1, -1), 3: None}
    moving = {A0: Reassignment((2, 3, 1), (2, 3), (1,)), A1: Reassignment((2, 1), (2,), (1,))}
    behind, in_sync = copies_of(moving, seen, disks)
    assert (behind, behind.share) == (Copy(A0, 2, 25, 100, False), 0.25)
    assert (in_sync, in_sync.share) == (Copy(A0, 3, 0, 100, True), 1.0)


def test_progress_has_a_rate_and_an_end() -> None:
    progress = Progress(began_s=0.0)
    progress.note(2, [Copy(A0, 2, 0, 40 * MIB, False), Copy(A1, 2, 0, 10 * MIB, False)], 0.0)
    assert progress.text() == "0 of 2 partitions done, 0 B of 50.0 MiB copied"
    progress.note(2, [Copy(A0, 2, 10 * MIB, 40 * MIB, False), Copy(A1, 2, 10 * MIB, 10 * MIB, True)], 10.0)
    assert progress.text() == "0 of 2 partitions done, 20.0 MiB of 50.0 MiB copied, 2.0 MiB/s, about 15 s left"
    progress.note(1, [Copy(A0, 2, 10 * MIB, 40 * MIB, False)], 10.0)
    assert progress.text() == "1 of 2 partitions done, 20.0 MiB of 50.0 MiB copied, 2.0 MiB/s, about 15 s left"


def test_what_was_done_before_the_first_look_counts_as_done() -> None:
    progress = Progress(began_s=0.0, partitions=12)
    progress.note(2, [], 0.0)
    assert progress.text().startswith("10 of 12 partitions done")


def test_what_was_copied_before_is_not_counted_as_speed() -> None:
    progress = Progress(began_s=0.0)
    progress.note(1, [Copy(A0, 2, 50 * MIB, 100 * MIB, False)], 0.0)
    progress.note(1, [Copy(A0, 2, 60 * MIB, 100 * MIB, False)], 10.0)
    assert progress.text().endswith("1.0 MiB/s, about 40 s left")


def test_a_replica_that_is_larger_than_the_leaders_is_no_more_than_done() -> None:
    assert Copy(A0, 2, 300, 100, False).share == 1.0
    assert Copy(A0, 2, 0, 0, False).share == 0.0
