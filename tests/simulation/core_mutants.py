"""Rules of replication, each switched off on purpose: a simulation of the cores that does not notice proves nothing.

python -m tests.simulation.core_mutants [SEEDS [NAME...]]     prints the table: rule, the seed that saw it, what it saw
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from tests.simulation.hunting import Mutant, Pack, main

from runnel.broker import followers
from runnel.cluster import elections, isr_changes, membership, nodes
from runnel.cluster.drafting import Draft, Living
from runnel.cluster.image import NO_LEADER, BrokerState
from runnel.cluster.nodes import Fence
from runnel.cluster.store import Check, Create, Op, Set
from runnel.log.epochs import Epochs
from runnel.log.producers import Producers
from runnel.model.ids import NO_EPOCH, Offset
from runnel.replica import following
from runnel.replica.following import Append, AskAgain, Cut, Verdict
from runnel.replica.partition import Role
from runnel.replica.progress import Progress
from runnel.testing.core import replica
from runnel.testing.core.broker import ModelBroker
from runnel.testing.core.controller import ModelController
from runnel.testing.core.log import ModelLog
from runnel.testing.core.replica import Replica
from runnel.testing.core.rules import Rules
from runnel.testing.core.simulation import run
from runnel.testing.core.swarm import TopicSwarm

SEEDS_MAX = 2_000


# --- what a leader counts: replica.progress


def _maximal_is_stored(self: Progress) -> bool:
    self._maximal = frozenset(self.isr)
    return self._advance()


def _maximal_is_proposed(self: Progress) -> bool:
    self._maximal = self._proposed.members if self._proposed is not None else frozenset(self.isr)
    return self._advance()


def _may_join_by_high_watermark(self: Progress, who: Any, brokers: Any) -> bool:
    follower = self._followers.get(who)
    if follower is None or who in self.isr or brokers.get(who, NO_EPOCH) != follower.broker_epoch:
        return False
    return follower.broker_epoch != NO_EPOCH and follower.held >= self.high_watermark


def _lags_only_in_sync(self: Progress, who: Any, now_ms: Any, lag_ms_max: int) -> bool:
    """Who joins need not have caught up: in this epoch, that too means all below its beginning."""
    return who in self.isr and _lags(self, who, now_ms, lag_ms_max)


_lags = Progress.lags


def _may_join_whoever_asks(self: Progress, who: Any, brokers: Any) -> bool:
    follower = self._followers.get(who)
    return follower is not None and who not in self.isr and brokers.get(who, NO_EPOCH) == follower.broker_epoch


def _enough_by_own_minimum(self: Progress) -> bool:
    return len(self.isr) >= self.needed


def _advance_or_retreat(self: Progress) -> bool:
    if self.enough:
        self.high_watermark = Offset(max(0, min(self.held_by(member) for member in self._maximal)))
    return True


_fetched = Progress.fetched


def _fetched_by_any_life(self: Progress, who: Any, broker_epoch: Any, *rest: Any) -> bool:
    follower = self._followers.get(who)
    if follower is not None and broker_epoch < follower.broker_epoch:
        broker_epoch = follower.broker_epoch
    return _fetched(self, who, broker_epoch, *rest)


def _knows_but_later_lives(self: ModelBroker, broker: Any, epoch: Any) -> bool:
    registered = _registered_epoch(self, broker)
    return registered is None or epoch <= registered


def _knows_but_earlier_lives(self: ModelBroker, broker: Any, epoch: Any) -> bool:
    registered = _registered_epoch(self, broker)
    return registered is None or epoch >= registered


def _registered_epoch(self: ModelBroker, broker: Any) -> Any:
    registered = None if self.image is None else self.image.brokers.get(broker)
    return None if registered is None else registered.epoch


def _see_forgetting(self: Progress, image: Any) -> bool:
    self._proposed = None
    return _see(self, image)


_see = Progress.see


# --- what a follower does: replica.following, and its use


def _decide_anything(log: Any, now_following: Any, asked: Any, answer: Any) -> Any:
    """Rule 1 off: whatever comes is taken for the answer."""
    if answer.verdict is Verdict.OK:
        return Append(answer.records)
    if answer.verdict is Verdict.DIVERGED:
        return following._cut(log, asked, answer)
    return following._begin_anew(log, answer) if answer.verdict is Verdict.OUT_OF_RANGE else AskAgain("")


_decide = following.decide


def _decide_whoever_leads(log: Any, now_following: Any, asked: Any, answer: Any) -> Any:
    return _decide(log, asked.leader_epoch, asked, answer)


def _decide_by_offset(log: Any, now_following: Any, asked: Any, answer: Any) -> Any:
    return _decide(log, now_following, asked._replace(last_epoch=log.epochs.latest), answer)


def _cut_at_leaders_end(log: Any, asked: Any, answer: Any) -> Any:
    if not 0 <= answer.end_offset < asked.offset:
        return AskAgain("")
    return Cut(answer.end_offset)


def _cut_at_own_end(log: Any, asked: Any, answer: Any) -> Any:
    _, own_end = log.epochs.end_offset(answer.epoch)
    return Cut(own_end) if 0 <= own_end < asked.offset else AskAgain("")


def _follow_from_high_watermark(self: Replica, image: Any) -> None:
    follows = self.role is Role.FOLLOWER and image.leader_epoch == self.leader_epoch
    _follow(self, image)
    if not follows:
        self._cut(self.high)


_follow = Replica._follow


def _step_down_and_promise_on(self: Replica) -> None:
    """Who waits for an acknowledgement goes on waiting, for whatever comes to lie at its offset."""
    self.role = Role.IDLE
    self._turn += 1


def _leaders_high_watermark(known: Any, leaders: Any, own_end: Any) -> Any:
    return max(known, leaders)


def _agreed(*_: Any) -> None:
    return None


def _cut_and_keep_high_watermark(self: Replica, offset: Offset) -> None:
    before = self.high
    _replica_cut(self, offset)
    self.high = before


_replica_cut = Replica._cut


def _truncate_log_alone(self: Epochs, end_offset: int) -> None:
    """The epochs stay as they were."""


_truncate = ModelLog.truncate


def _truncate_log_not_producers(self: ModelLog, end: int) -> None:
    kept = self.producers.copy()
    _truncate(self, end)
    self.producers = kept


def _held_is_written(self: ModelLog) -> Offset:
    return self.end_offset


# --- what a controller decides: cluster.drafting, elections, isr_changes


def _settle_unclean(self: Draft, living: Any, *, unclean: bool = False) -> None:
    _settle(self, living, unclean=True)


_settle = Draft.settle


def _alive_is_serving(cls: Any, brokers: Any) -> Living:
    everyone = list(brokers)
    return Living(
        frozenset(broker.id for broker in everyone),
        frozenset(broker.id for broker in everyone if broker.state is BrokerState.STOPPING),
    )


def _never(*_: Any) -> bool:
    return False


def _result_in_old_epoch(self: Draft) -> Any:
    after = _result(self)
    return after if after is self._was else replace(after, leader_epoch=self._was.leader_epoch)


_result = Draft.result


def _result_by_leader_alone(self: Draft) -> Any:
    after = _result(self)
    goes_on = after is not self._was and after.leader == self._was.leader
    return replace(after, leader_epoch=self._was.leader_epoch) if goes_on else after


def _finish_at_once(self: Draft) -> None:
    target = tuple(broker for broker in self.replicas if broker not in self.removing)
    if (self.adding or self.removing) and set(target) & set(self.isr):
        self.replicas, self.adding, self.removing = target, (), ()
        self.isr = target


def _isr_of_all_named(image: Any, topic: Any, changes: Any, broker: Any, change: Any) -> Any:
    """Neither leader epoch nor partition epoch is looked at."""
    present = changes.partition(topic, change.key.number)
    isr_changes._check_members(image, "", present, change)
    return present


def _isr_of_older_partition(image: Any, topic: Any, changes: Any, broker: Any, change: Any) -> Any:
    """The partition epoch is not looked at."""
    present = changes.partition(topic, change.key.number)
    return _checked(image, topic, changes, broker, change._replace(partition_epoch=present.epoch))


_checked = isr_changes._checked


def _lose_nothing(self: Draft, broker: Any) -> None:
    self.isr = tuple(member for member in self.isr if member != broker)


def _elr_at_any_size(self: Draft) -> Any:
    """The ELR is kept when the ISR has its minimum again."""
    if self.unclean:
        return ()
    knew = {*self._was.isr, *self._was.elr} - self._lost
    return tuple(broker for broker in self.replicas if broker in knew and broker not in self.isr)


def _think_admitting_first(self: ModelController, image: Any) -> None:
    ready = elections.waiting(image)
    if ready is not None and image.controller.broker != NO_LEADER:
        return self._write(image, elections.admit(image, ready, self._broker.base).delta, None)
    return _think(self, image)


_think = ModelController._think


# --- what a broker says of itself: cluster.membership


def _declare_again(mine: Any, state: Any, damaged: Any) -> Any:
    declared = _declare(mine, state, damaged)
    return replace(mine, version=mine.version + 1) if declared is mine else declared


_declare = membership.declare


# --- what the store checks: cluster.nodes


def _ops_of_anybody(self: Fence, touched: Sequence[str]) -> list[Op]:
    return [op for op in _fence_ops(self, touched) if not isinstance(op, Check)]


_fence_ops = Fence.ops


def _put_over_anything(path: str, value: bytes, version: int) -> Op:
    return Create(path, value) if version == 0 else Set(path, value, -1)


def _without(*names: str) -> Mapping[str, Any]:
    """The model's own rules that are off."""
    return {"rules": Rules(**dict.fromkeys(names, False))}


MUTANTS = [
    Mutant("no_maximal", "the maximal ISR counts: stored and proposed", ((Progress, "_united", _maximal_is_stored),)),
    Mutant("local_shrink", "a shrink counts once it is stored", ((Progress, "_united", _maximal_is_proposed),)),
    Mutant(
        "k7128",
        "who joins holds all below the epoch's start",
        ((Progress, "may_join", _may_join_by_high_watermark), (Progress, "lags", _lags_only_in_sync)),
    ),
    Mutant("join_any", "who joins holds all that is committed", ((Progress, "may_join", _may_join_whoever_asks),)),
    Mutant("min_isr_ignored", "below the minimum nothing is committed", ((Progress, "enough", True),)),
    Mutant(
        "elr_unheeded",
        "while anybody is eligible nothing is committed",
        ((Progress, "enough", property(_enough_by_own_minimum)),),
        faults=("kill", "bounce", "pause"),
        given={"topics": (TopicSwarm(2, None, True, False),)},
    ),
    Mutant("hw_back", "the high watermark never goes back", ((Progress, "_advance", _advance_or_retreat),)),
    Mutant(
        "older_life",
        "an earlier life says nothing",
        ((Progress, "fetched", _fetched_by_any_life), (ModelBroker, "_knows", _knows_but_later_lives)),
        ("bounce", "slow-disk"),
        given={
            "topics": (TopicSwarm(3, 1, False, False),),
            "reach_ms": 40.0,
            "far": 0.3,
            "late_ms": 2.0,
            "session_ms": 200.0,
        },
    ),
    Mutant(
        "unborn_life",
        "a life that is not registered says nothing",
        ((ModelBroker, "_knows", _knows_but_earlier_lives),),
        ("imposter", "kill"),
        sign="LeaderCandidateCompleteness",
    ),
    Mutant("proposal_forgotten", "a proposal counts until the image decides", ((Progress, "see", _see_forgetting),)),
    Mutant(
        "withdraw_unsure", "a refusal counts only if no try can still be stored", switches=_without("withdraw_if_sure")
    ),
    Mutant(
        "hw_trunc",
        "logs are compared by epochs, not cut at the high watermark (KIP-101)",
        ((Replica, "_follow", _follow_from_high_watermark), (replica, "divergence_of", _agreed)),
    ),
    Mutant("no_divergence", "a leader tells where the logs parted", ((replica, "divergence_of", _agreed),)),
    Mutant("no_correlation", "an answer counts for its question only", ((replica, "decide", _decide_anything),)),
    Mutant(
        "question_offset",
        "a question is known by offset and last epoch",
        ((replica, "decide", _decide_by_offset),),
        faults=("transfer", "kill", "pause"),
        given={"double": 0.6, "far": 0.3, "reach_ms": 40.0, "producers": ((1, False), (1, False), (-1, True))},
    ),
    Mutant(
        "answer_epoch",
        "an answer counts in its leader epoch only",
        ((following, "decide", _decide_whoever_leads),),
        alone="tests/replica/test_following.py::test_an_answer_of_another_leader_epoch_is_dropped",
    ),
    Mutant(
        "cut_leaders_end",
        "the cut is at the end of the epoch both share (KIP-279)",
        ((following, "_cut", _cut_at_leaders_end),),
        faults=("kill", "pause"),
        given={
            "topics": (TopicSwarm(3, 2, True, False),),
            "producers": ((1, False), (1, False)),
            "at_transitions": ("role", "elected"),
            "transition_chance": 0.3,
            "down_ms": 500.0,
        },
    ),
    Mutant("cut_own_end", "the cut is where the leader's epoch ends", ((following, "_cut", _cut_at_own_end),)),
    Mutant(
        "fetch_epoch",
        "a leader answers in its epoch only",
        ((followers, "check_epoch", _agreed),),
        alone="tests/broker/test_followers.py::test_what_is_not_checked_is_not_held",
    ),
    Mutant("diverged_held", "who left the leader's log holds nothing", switches=_without("diverged_first")),
    Mutant("unsynced_held", "a follower asks at what it holds durably", switches=_without("held_is_synced")),
    Mutant("no_sync", "what is held was synced", ((ModelLog, "held_offset", property(_held_is_written)),)),
    Mutant(
        "follower_hw_above_end",
        "a follower's high watermark is not above its end",
        ((replica, "high_watermark", _leaders_high_watermark),),
    ),
    Mutant(
        "hw_not_cut",
        "a follower's high watermark goes back with its end",
        ((Replica, "_cut", _cut_and_keep_high_watermark),),
        faults=("kill", "power-all", "isolate"),
        given={"topics": (TopicSwarm(3, 1, True, True),)},
    ),
    Mutant("hw_is_end", "a new leader begins with the high watermark it knew", switches=_without("high_kept")),
    Mutant("epochs_stale", "epochs are cut with the log", ((Epochs, "truncate", _truncate_log_alone),)),
    Mutant("dedupe_stale", "producers are cut with the log", ((ModelLog, "truncate", _truncate_log_not_producers),)),
    Mutant("no_dedupe", "a batch that comes twice is stored once", ((Producers, "check", _agreed),)),
    Mutant("read_leo", "readers stop at the high watermark", switches=_without("read_to_high")),
    Mutant("ack1", "acks=all is answered at the high watermark", switches=_without("ack_at_high")),
    Mutant(
        "cross_epochs",
        "an acknowledgement belongs to the epoch in which was appended",
        ((Replica, "step_down", _step_down_and_promise_on),),
        ("isolate", "transfer", "pause"),
    ),
    Mutant(
        "early_duplicate",
        "a duplicate is answered when its original is committed",
        switches=_without("duplicate_at_high"),
    ),
    Mutant("unclean", "only who has everything is elected", ((Draft, "settle", _settle_unclean),)),
    Mutant("elr_ignored", "who leaves below the minimum is remembered", ((Draft, "elr", ()),)),
    Mutant("elr_kept", "at the minimum the ELR is forgotten", ((Draft, "elr", property(_elr_at_any_size)),)),
    Mutant(
        "fast_restart",
        "who starts again leaves the ISR, however fast",
        (
            (Living, "of", classmethod(_alive_is_serving)),
            (elections, "_lost_disk", _never),
            (elections, "_crashed", _never),
        ),
    ),
    Mutant("keep_unclean", "after a crash without syncs nobody is trusted", ((elections, "_crashed", _never),)),
    Mutant("keep_new_disk", "a new disk holds nothing", ((elections, "_lost_disk", _never),)),
    Mutant(
        "damage_untold",
        "a lost copy is told before it counts again",
        switches=_without("damage_told"),
        faults=("damage", "stop"),
    ),
    Mutant("lost_kept", "whose copy is lost leaves ISR and ELR", ((Draft, "lose", _lose_nothing),)),
    Mutant(
        "stale_broker_epoch",
        "who joins does so in the life that caught up (KIP-903)",
        ((isr_changes, "_check_members", _agreed),),
    ),
    Mutant(
        "partition_epoch",
        "a change of an older partition is refused",
        ((isr_changes, "_checked", _isr_of_older_partition),),
    ),
    Mutant(
        "partition_and_leader_epoch",
        "a change by an older leader is refused",
        ((isr_changes, "_checked", _isr_of_all_named),),
    ),
    Mutant("epoch_kept", "every new leader begins a new epoch", ((Draft, "result", _result_in_old_epoch),)),
    Mutant(
        "gone_in_epoch",
        "a replica that goes ends the leader epoch",
        ((Draft, "result", _result_by_leader_alone),),
        faults=("reassign", "cancel", "transfer"),
    ),
    Mutant("reassigned_early", "a move is done when everybody is in sync", ((Draft, "_finish_move", _finish_at_once),)),
    Mutant(
        "admit_first", "who comes back has lost its leaderships", ((ModelController, "_think", _think_admitting_first),)
    ),
    Mutant(
        "said_again",
        "who says what it said before writes nothing",
        ((membership, "declare", _declare_again),),
        faults=("resign", "cut", "transfer"),
    ),
    Mutant("role_before_admission", "who is not admitted has no role", switches=_without("role_by_life")),
    Mutant(
        "image_version",
        "a decision on an old image is refused",
        faults=("bounce", "power", "new-disk", "kill"),
        given={"late_writes": 0.5, "session_ms": 600.0},
        switches=_without("image_version"),
    ),
    Mutant(
        "no_fence",
        "an earlier controller, or an old image, writes nothing",
        faults=("kill-controller", "pause", "bounce", "new-disk"),
        given={"late_writes": 0.5, "session_ms": 200.0},
        switches=_without("controller_epoch", "image_version"),
    ),
    Mutant(
        "controller_epoch",
        "an earlier controller writes nothing",
        ((Fence, "ops", _ops_of_anybody),),
        alone="tests/cluster/test_nodes.py::test_a_fence_checks_the_controller_and_keeps_the_last_changes",
    ),
    Mutant(
        "node_version",
        "a topic is changed by who has read it",
        ((nodes, "_put", _put_over_anything),),
        alone="tests/cluster/test_nodes.py::test_the_operations_of_a_delta",
    ),
]

PACK = Pack("core", run, MUTANTS, SEEDS_MAX)

if __name__ == "__main__":
    sys.exit(main([PACK], sys.argv[1:]))
