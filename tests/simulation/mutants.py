"""Rules of Runnel, each switched off on purpose: a simulation that does not notice proves nothing about the rule.

python -m tests.simulation.mutants [SEEDS [NAME...]]     prints the table: rule, the seed that saw it, what it saw
"""

import asyncio
import sys
from contextlib import suppress
from functools import partial
from typing import Any
from unittest import mock
from uuid import NAMESPACE_DNS, uuid5

import msgspec
from tests.simulation.hunting import Mutant, Pack, main

from runnel.broker import end_offsets, followers, internal_settings, partitions, produce
from runnel.broker.confirming import Confirming
from runnel.broker.damage import Damages
from runnel.broker.followers import FollowerSession
from runnel.broker.groups import Groups
from runnel.broker.journal import Led, PartitionJournal
from runnel.broker.partitions import Partitions
from runnel.broker.shard import Shard
from runnel.client.membership import GroupSettings
from runnel.client.producer_settings import ProducerSettings
from runnel.cluster import controller, elections, isr_changes, loading, membership
from runnel.cluster.drafting import Draft, Rules
from runnel.cluster.image import Delta, Image
from runnel.groups.classic import ClassicGroup
from runnel.groups.old_records import OldRecords
from runnel.groups.shard import GroupShard
from runnel.groups.store import Store
from runnel.log import checkpoint, reader, recovery, rolling, scan, trimming, writer
from runnel.log.keeper import Keeper
from runnel.log.log import Log
from runnel.log.mark import Mark
from runnel.log.producers import Producers
from runnel.log.reader import Reader
from runnel.log.trimming import Trimmer
from runnel.log.worker import Worker
from runnel.log.writer import Writer
from runnel.model.errors import RunnelError, StaleBrokerEpoch
from runnel.model.ids import BrokerId, TopicId
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.net import buffers
from runnel.net.inbox import Inbox
from runnel.replica import following
from runnel.replica.commits import Commits
from runnel.replica.partition import Partition
from runnel.replica.progress import Progress
from runnel.replica.readable import Readable
from runnel.replica.refusals import Refusals
from runnel.replica.unreadable import Unreadable
from runnel.testing.simulation import run

SEEDS_MAX = 150


# --- the mutants


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _unregister_anybody(image: Image, broker: BrokerId) -> Delta:
    return Delta(admitted={broker: None})


def _held_is_written(self: Writer) -> int:
    return self._state.end_offset


def _readable_to_the_end(self: Partition, **_: bool) -> int:
    return self.log.end_offset


def _scan_nothing(self: Any, file: Any, segment: Any, position: int, *_: Any) -> int:
    return position


_walk = scan.walk


def _walk_unchecked(file: Any, position: int, end: int, *, check_crc: bool = True) -> Any:
    return _walk(file, position, end, check_crc=False)


async def _append_unawaited(self: PartitionJournal, decided: Any) -> None:
    with mock.patch.object(self._partition, "committed", _nothing):
        await _journal_append(self, decided)


_journal_append = PartitionJournal.append


async def _keep_going(self: Shard[Any], error: Any) -> None:
    self._steps.clear()
    self._fail_all(error)


def _refuse_earlier_lives_only(self: Image, broker: Any, epoch: Any) -> None:
    registered = self.brokers.get(broker)
    if registered is not None and epoch < registered.epoch:
        raise StaleBrokerEpoch("an earlier life")


def _remove_in_place(disk: Any, names: list[str]) -> None:
    for name in names:
        disk.remove(f"{partitions.FOLDER}/{name}")


def _sync_if_possible(file: Any) -> None:
    with suppress(OSError):
        file.sync()


def _sloppy_replace(disk: Any, folder: str, name: str, data: bytes, *, durable: bool = True) -> None:
    _replace(disk, folder, name, data, durable=False)


_replace = checkpoint.replace


def _always_unseen(buffer: bytearray) -> bool:
    return True


def _retire_at_once(self: Inbox, chunk: Any) -> None:
    if chunk is not self._chunk:
        self._supplies.buffers.give(chunk.data)


async def _finish_duplicate_at_once(partition: Any, begun: Any, epoch: Any, acks: int, timeout_s: float) -> Any:
    try:
        appended = await begun if isinstance(begun, asyncio.Future) else begun
    except RunnelError as error:
        return error
    return await _finish(partition, appended, epoch, 1 if appended.duplicate else acks, timeout_s)


_finish = produce._finish


# --- damage and deletion


class _Whatever(int):
    """A checksum that every other one equals."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _any_checksum(*_: Any) -> int:
    return _Whatever()


def _heals_at_once(self: Partition) -> bool:
    return self.is_follower and bool(self.log.damage)


def _create_under_the_same_id(image: Any, specs: Any, new_id: Any, *rest: Any) -> Any:
    return _create_topics(image, specs, lambda: TopicId(uuid5(NAMESPACE_DNS, specs[0].name)), *rest)


_create_topics = controller.create_topics


async def _remove_whatever_is_unknown(self: Partitions) -> None:
    known = {str(topic_id) for topic_id in self._image.topics}
    unknown = [name for name in self._disk.list("partitions") if name.rpartition("-")[0] not in known]
    await self._disk.offload(lambda: _remove_in_place(self._disk, unknown))


# --- replication


async def _done(*_: Any, **__: Any) -> None:
    return None


def _raise_it(_: Unreadable, problem: Exception, offset: int) -> None:
    raise problem


def _no(*_: Any) -> bool:
    return False


def _yes(*_: Any, **__: Any) -> bool:
    return True


def _append_anyway(_: Any, answer: following.Answer) -> following.Append:
    return following.Append(answer.records)


def _proposed_counts_at_once(self: Progress) -> bool:
    self._maximal = self._proposed.members if self._proposed is not None else frozenset(self.isr)
    return self._advance()


def _stored_alone_counts(self: Progress) -> bool:
    self._maximal = frozenset(self.isr)
    return self._advance()


def _unclean_rules(cls: Any, config: Any) -> Rules:
    return _rules_of(config)._replace(unclean=True)


_rules_of = Rules.of


def _same_leader_epoch(self: Draft) -> Any:
    result = _result(self)
    return msgspec.structs.replace(result, leader_epoch=self._was.leader_epoch)


_result = Draft.result


def _whatever_the_partition_epoch(image: Any, topic: Any, changes: Any, broker: Any, change: Any) -> Any:
    present = changes.partition(topic, change.key.number)
    fresh = change._replace(leader_epoch=present.leader_epoch, partition_epoch=present.epoch)
    return _checked(image, topic, changes, present.leader, fresh)


_checked = isr_changes._checked


async def _cut_and_remember_producers(self: Any, offset: Any, now_ms: Any, *, aside: bool) -> None:
    before = self._state.producers
    await _cut_at(self, offset, now_ms, aside=aside)
    self._state.producers = before


_cut_at = Trimmer._cut_at


def _told_again(self: FollowerSession, answered: Any) -> Any:
    return _next_news(self, ())


_next_news = FollowerSession.next_news


def _follow_from_high_watermark(self: Partition, image: Any) -> None:
    before = self.leader_epoch
    _follow(self, image)
    if self.leader_epoch != before and self.high_watermark < self.log.end_offset:
        asyncio.get_running_loop().create_task(self.log.truncate(self.high_watermark))


_follow = Partition._follow


def _clean_registration(broker: Any, identity: Any, past: Any) -> Any:
    return msgspec.structs.replace(_registration(broker, identity, past), clean=True)


_registration = membership._registration


def _the_gap(self: Refusals, gap: Any, header: Any) -> Any:
    return gap


def _forget_the_refusal(self: Refusals, header: Any, *, in_line: bool = False) -> None:
    self._waiting.pop(header.producer_id, None)


IMPATIENT = GroupSettings(session_timeout_ms=6_000, rebalance_timeout_ms=1_000, heartbeat_ms=3_000)
THREE = {"brokers": 3, "replicas": 3}
ALONE = {"members": 0, "new_members": 0, "drafts": False}  # what is about the topic itself
PIPELINED_FAULTS = ("elect", "reassign", "disk-slow", "stop")
PIPELINED = {  # producers have much under way while leaders come and go
    **THREE, **ALONE, "eager": True, "producers": (ProducerSettings(linger_ms=0, batch_bytes=300),) * 2,
    "send_every_s": 0.01, "disk_s": (0.00005, 0.03), "fault_every_s": 0.15, "transition_chance": 0.4, "lag_chance": 0.2,
    "lag_s": 0.002, "flush_mode": FlushMode.COMMIT,
}  # fmt: skip
SAFE = TopicConfig(
    flush_mode=FlushMode.COMMIT, min_insync_replicas=2, segment_bytes=2_000, segment_ms=1_500, index_interval_bytes=200,
    retention_ms=-1, min_cleanable_dirty_ratio=0.0, message_timestamp_after_max_ms=10**9,
)  # fmt: skip

MUTANTS = [
    Mutant(
        "ack-written",
        "acks=all is answered when the high watermark has passed",
        ((Partition, "committed", _nothing),),
        ("power-at", "power"),
        sign="lost",
    ),
    Mutant("hold-written", "a replica holds what is synced", ((Writer, "held_offset", property(_held_is_written)),)),
    Mutant("read-end", "nobody reads above the high watermark", ((Partition, "readable_until", _readable_to_the_end),)),
    Mutant("no-sync", "what is held was synced", ((writer, "sync", _nothing), (rolling, "sync", _nothing))),
    Mutant("seal-unsynced", "a segment that was rolled is synced before it counts", ((rolling, "sync", _nothing),)),
    Mutant(
        "no-sync-dir", "what is created is durable once its folder is synced", ((checkpoint, "sync_dir", _nothing),)
    ),
    Mutant(
        "checkpoint-unsynced",
        "a checkpoint is synced before it takes its name",
        ((checkpoint, "replace", _sloppy_replace),),
    ),
    Mutant(
        "sync-forgiven",
        "a sync that failed ends the broker",
        ((writer, "sync", _sync_if_possible), (rolling, "sync", _sync_if_possible)),
        ("sync-lost", "kill"),
    ),
    Mutant("cut-too-much", "recovery keeps every good batch", ((recovery._Recovery, "_scan", _scan_nothing),)),
    Mutant(
        "trust-torn-tail",
        "recovery checks the checksums of the tail",
        ((recovery, "walk", _walk_unchecked),),
        ("power-at",),
    ),
    Mutant(
        "no-rollback",
        "a write that failed leaves no producer state",
        ((Producers, "rollback", _nothing),),
        ("disk-full",),
    ),
    Mutant("no-dedup", "a batch that comes twice is stored once", ((Producers, "check", _nothing),)),
    Mutant("no-replay", "producers are a function of the log", ((Producers, "replay", _nothing),)),
    Mutant(
        "no-snapshot",
        "producers are found again below the recovery point",
        ((recovery._Recovery, "_resume_producers", _nothing),),
        ("cut", "stop"),
    ),
    Mutant(
        "early-duplicate",
        "a duplicate is answered when its original is committed",
        ((produce, "_finish", _finish_duplicate_at_once),),
        ("disk-slow", "reset", "power"),
    ),
    Mutant(
        "gap-told",
        "who was refused for now is not told of a gap behind that",
        ((Refusals, "instead_of", _the_gap),),
        PIPELINED_FAULTS,
        PIPELINED,
        sign="false-gap",
    ),
    Mutant(
        "refusal-forgotten",
        "a refusal counts until what was refused is taken",
        ((Refusals, "taken", _forget_the_refusal),),
        PIPELINED_FAULTS,
        PIPELINED,
        sign="false-gap",
    ),
    Mutant(
        "late-unwaited",
        "what a producer sent to the leader before may still come",
        ((Refusals, "suppose", _nothing),),
        alone="tests/broker/test_produce.py::test_a_gap_before_the_first_batch_under_a_new_leader_may_be_on_its_way",
    ),
    Mutant(
        "early-offsets",
        "answers of groups wait for their log",
        ((PartitionJournal, "append", _append_unawaited),),
        ("power-at",),
    ),
    Mutant(
        "keep-state",
        "a group's state that could not be kept is thrown away",
        ((Shard, "_start_over", _keep_going),),
        ("disk-full", "kill"),
    ),
    Mutant(
        "anybody",
        "who lost its seat can't commit",
        ((ClassicGroup, "check_commit", _nothing),),
        ("pause", "client-kill"),
        {"members": 3, "load_s": 30.0, "fault_every_s": 0.4, "group": IMPATIENT},
        sign="zombie-commit",
    ),
    Mutant(
        "local-shrink",
        "a shrink of the ISR counts once it is stored",
        ((Progress, "_united", _proposed_counts_at_once),),
    ),
    Mutant("no-maximal", "who was proposed for the ISR counts at once", ((Progress, "_united", _stored_alone_counts),)),
    Mutant(
        "below-minimum",
        "nothing is committed below min.insync.replicas (KIP-966)",
        ((Progress, "enough", property(_yes)),),
    ),
    Mutant(
        "unclean", "who leads was in sync", ((Rules, "of", classmethod(_unclean_rules)),), ("kill", "pause", "isolate")
    ),
    Mutant("same-epoch", "every leader has an epoch of its own", ((Draft, "result", _same_leader_epoch),)),
    Mutant(
        "keep-place", "who crashed leaves the ISR until it has caught up", ((elections, "_crashed", _no),), ("power",)
    ),
    Mutant(
        "always-clean",
        "whether a life ended well is told by what it left behind",
        ((membership, "_registration", _clean_registration),),
        ("power",),
        {"flush_mode": FlushMode.OS},
    ),
    Mutant(
        "no-cas",
        "a leader changes the partition that it looked at, in its own epoch",
        ((isr_changes, "_checked", _whatever_the_partition_epoch),),
        ("elect", "slow", "cut"),
        {**THREE, **ALONE, "replica_lag_ms": 700, "session_s": 3.0, "fault_every_s": 0.4, "load_s": 12.0},
    ),
    Mutant(
        "any-epoch",
        "a follower and its leader are in the same epoch (KIP-320)",
        ((followers, "check_epoch", _nothing),),
        alone="tests/broker/test_followers.py::test_what_is_not_checked_is_not_held",
    ),
    Mutant(
        "no-divergence",
        "a follower's log is the leader's",
        ((followers, "divergence_of", _nothing),),
        sign="log-mismatch",
    ),
    Mutant(
        "cut-to-high",
        "a log is cut where leader epochs part (KIP-101)",
        ((Partition, "_follow", _follow_from_high_watermark),),
    ),
    Mutant("ask-unsynced", "a follower asks beyond what it holds, never further", ((Partition, "_is_held", True),)),
    Mutant("stale-producers", "producers are cut with their log", ((Trimmer, "_cut_at", _cut_and_remember_producers),)),
    Mutant(
        "cross-epochs",
        "an acknowledgement belongs to the epoch in which was appended",
        ((Partition, "_must_lead", _nothing), (Commits, "fail", _nothing)),
        alone="tests/replica/test_partition.py::test_a_new_epoch_ends_the_promises_of_the_last_one",
    ),
    Mutant(
        "unsettled", "a new leader tells no end before it knows it", ((Partition, "settled", True),), ("kill",), THREE
    ),
    Mutant(
        "old-shard",
        "groups are kept in the epoch in which they were read",
        ((Led, "is_held", _yes), (Led, "belongs_to", _yes), (Confirming, "confirm", _done)),
        ("elect", "kill"),
        {**THREE, "fault_every_s": 0.4, "load_s": 12.0, "session_s": 1.5, "down_s": (0.3,), "members": 2},
        sign="commit-lost",
    ),
    Mutant(
        "shard-half-read",
        "groups are read when all of their log is committed",
        ((PartitionJournal, "_settled", _done),),
    ),
    Mutant(
        "unborn-heard",
        "a follower is heard in the life under which it is registered",
        ((Image, "check_life", _refuse_earlier_lives_only),),
        alone="tests/test_replication.py::test_a_client_that_poses_as_a_replica_commits_nothing",
    ),
    Mutant(
        "end-unwaited",
        "an end that is told contains what was acknowledged",
        ((end_offsets, "commit_written", _done),),
        alone="tests/broker/test_end_offsets.py::test_an_end_waits_for_the_sync_of_what_was_acknowledged",
    ),
    Mutant(
        "trimmed-told",
        "memory tells nothing below the start of the log",
        ((Readable, "keeps", _yes),),
        alone="tests/broker/test_messages.py::test_nothing_below_the_start_comes_out_of_memory",
    ),
    Mutant(
        "closed-written",
        "a log that is closed takes no more jobs, and is not read",
        ((Worker, "run", Worker._put), (Reader, "_must_be_known", _nothing)),
        alone="tests/log/test_log.py::test_nothing_is_written_to_a_folder_once_its_log_is_discarded",
    ),
    Mutant(
        "removed-in-place",
        "a copy loses its name before it is removed",
        ((partitions, "_set_aside", _remove_in_place),),
        alone="tests/broker/test_partitions.py::"
        "test_work_that_was_under_way_does_not_keep_a_deleted_copy_from_being_removed",
    ),
    Mutant(
        "orphans-kept",
        "a member leaves with the life of the broker that runs it",
        ((GroupShard, "_remove_orphans", _nothing),),
        alone="tests/groups/test_orphans.py::test_a_member_leaves_with_the_life_of_its_broker",
    ),
    Mutant(
        "told-twice",
        "a follower is told of a partition once in an answer",
        ((FollowerSession, "next_news", _told_again),),
        alone="tests/broker/test_followers.py::test_what_was_answered_is_not_answered_again_in_the_same_answer",
    ),
    Mutant(
        "image-mixed",
        "a state is passed on if no later change touched what was read of it",
        ((loading, "_is_one_state", _yes),),
        alone="tests/cluster/test_loading.py::test_whatever_is_written_meanwhile_each_state_is_one_that_was",
    ),
    Mutant(
        "false-rot",
        "a file that was exchanged is not a rotten one",
        ((Reader, "stands", _yes),),
        alone="tests/log/test_damage.py::test_a_file_that_is_cut_while_it_is_read_is_not_taken_for_a_rotten_one",
    ),
    Mutant(
        "sync-believed",
        "what no sync is known of is written again before it is synced",
        ((checkpoint, "write_again", _nothing),),
        alone="tests/log/test_storage_rules.py::test_what_a_failed_fsync_left_in_memory_is_written_again",
    ),
    Mutant(
        "names-unsynced",
        "names that a killed broker left are synced before anything counts",
        ((Keeper, "keep_names", _done),),
        alone="tests/log/test_storage_rules.py::"
        "test_names_that_killed_brokers_left_are_synced_before_anything_counts_on_them",
    ),
    Mutant(
        "snapshots-stay",
        "a snapshot of producers from above the end goes for good",
        ((recovery, "drop_snapshots", _nothing), (trimming, "drop_snapshots", _nothing)),
        alone="tests/log/test_snapshots.py",
    ),
    Mutant(
        "rot-served",
        "no batch leaves with a wrong checksum",
        ((reader, "crc32c", _any_checksum),),
        ("rot", "elect"),
        {**THREE, "topic": SAFE},
        sign="rot-served",
    ),
    Mutant(
        "epoch-unmarked",
        "below the mark an epoch is the one that was synced there",
        ((Mark, "may_have", _yes),),
        alone="tests/log/test_damage.py::test_an_epoch_that_rotted_in_the_synced_tail_is_damage",
    ),
    Mutant(
        "epoch-believed",
        "a leader epoch that can't be yet is damage",
        ((Log, "distrust_epochs_above", _nothing),),
        alone="tests/replica/test_partition.py::test_a_follower_with_an_epoch_that_can_not_be_is_damaged_and_heals",
    ),
    Mutant(
        "epoch-kept",
        "a leader that goes on with an older epoch shows that the newer one never was",
        ((following, "_append", _append_anyway),),
        alone="tests/replica/test_following.py::test_an_epoch_that_the_leader_has_not_reached_there_never_was",
    ),
    Mutant(
        "no-heir",
        "a damaged leader that is alone in sync hands over to one who is eligible",
        ((Progress, "_heir", lambda _: set()),),
        alone="tests/replica/test_progress.py::"
        "test_a_damaged_leader_alone_in_the_isr_hands_over_to_one_who_is_eligible_and_there",
    ),
    Mutant(
        "cut-out-of-range",
        "only who leads says that an offset is out of range",
        ((Partition, "read", Readable.read),),
        alone="tests/replica/test_partition.py::test_a_log_that_is_cut_when_it_leads_no_more_is_not_out_of_range",
    ),
    Mutant(
        "offset-believed",
        "a cut believes no offset that the next batch contradicts",
        ((scan, "misplaced", _no),),
        alone="tests/log/test_damage.py::test_a_cut_near_an_offset_that_rotted_keeps_what_lies_before_it",
    ),
    Mutant(
        "rot-kept",
        "whose copy is damaged says so, and leads no more",
        ((Damages, "found", _nothing),),
        alone="tests/test_replication.py::test_a_copy_that_rots_on_a_follower_is_fetched_again",
    ),
    Mutant(
        "healed-early",
        "damage is cut off when nobody counts on the copy any more",
        ((Partition, "may_heal", property(_heals_at_once)),),
        alone="tests/replica/test_partition.py::test_only_who_is_not_counted_on_heals",
    ),
    Mutant(
        "same-id",
        "a topic that is made again is another one",
        ((controller, "create_topics", _create_under_the_same_id),),
        ("kill", "pause"),
        {**THREE, "drafts": True},
        sign="bad-state",
    ),
    Mutant(
        "deleted-kept",
        "what was deleted goes from every disk",
        ((Partitions, "set_deleted_aside", _done),),
        given={**THREE, "drafts": True},
        sign="is still on",
    ),
    Mutant(
        "unknown-removed",
        "what nobody knows is left alone",
        ((Partitions, "_tidy_up", _remove_whatever_is_unknown),),
        alone="tests/broker/test_partitions.py::test_what_nobody_knows_is_left_alone",
    ),
    Mutant(
        "unregistered-replica",
        "a broker that holds replicas stays registered, and so does its disk",
        ((controller, "unregister", _unregister_anybody),),
        alone="tests/cluster/test_takeover.py::test_an_empty_disk_is_not_trusted_for_having_been_unregistered",
    ),
    Mutant(
        "unconfirmed",
        "who tells how far a group has come makes sure first that it is the coordinator",
        ((Groups, "fetch_offsets", Groups.known_offsets),),
        alone="tests/broker/test_confirming.py::test_a_coordinator_that_was_replaced_and_cannot_hear_of_it_tells_no_old_offset",
    ),
    Mutant(
        "removed-while-open",
        "a copy that has come back is not set aside",
        ((Partitions, "_is_elsewhere", _yes),),
        alone="tests/broker/test_partitions.py::test_a_copy_that_comes_back_while_others_are_opened_is_not_set_aside",
    ),
    Mutant(
        "buffer-reused",
        "a receive buffer is used again when its requests are answered",
        ((buffers, "_unseen", _always_unseen), (Inbox, "_retire", _retire_at_once)),
    ),
    Mutant(
        "foreign-write",
        "only its coordinator appends to an internal topic",
        ((Partition, "must_be_open_to_clients", _nothing),),
        alone="tests/replica/test_partition.py::test_only_its_coordinator_appends_to_a_partition_of_an_internal_topic",
    ),
    Mutant(
        "foreign-fatal",
        "a record that can't be read is set aside",
        ((Unreadable, "set_aside", _raise_it),),
        alone="tests/broker/test_set_aside.py",
    ),
    Mutant(
        "failed-verb-kept",
        "what a verb left in memory when it failed counts for nothing",
        ((Shard, "_failed", _nothing),),
        alone="tests/broker/test_shard.py::test_what_a_verb_left_in_memory_when_it_failed_counts_for_nothing",
    ),
    Mutant(
        "settings-open",
        "what decides what is kept in an internal topic is not the clients' to set",
        ((internal_settings, "check_settings", _nothing),),
        alone="tests/broker/test_internal_settings.py",
    ),
    Mutant(
        "strays",
        "members of another type than their group are taken out",
        ((Store, "drop_strays", _nothing),),
        alone="tests/groups/test_store.py",
    ),
    Mutant(
        "old-unwritten",
        "what an older Runnel wrote of groups is written anew before anything is answered",
        ((OldRecords, "rewrite", _nothing),),
        alone="tests/groups/test_old_records.py",
    ),
    Mutant(
        "former-offsets",
        "a topic that was created again begins without offsets",
        ((Store, "drop_topic", _nothing),),
        alone="tests/groups/test_store.py::test_a_topic_that_was_created_again_takes_the_offsets_of_the_former_with_it",
    ),
]

PACK = Pack("brokers", partial(run, brief=True), MUTANTS, SEEDS_MAX)

if __name__ == "__main__":
    sys.exit(main([PACK], sys.argv[1:]))
