"""Who leads: tables of what follows when brokers go, stop and come back, and what operators can ask for."""

from collections.abc import Sequence
from uuid import UUID

import pytest
from msgspec.structs import replace
from tests.cluster.rows import T, after, brokers, ids, image_of, row, shown

from runnel.cluster import controller, elections
from runnel.cluster.config_rules import BrokerResource, ConfigChange, ConfigOp, TopicResource
from runnel.cluster.drafting import Unclean
from runnel.cluster.elections import admit, elect, elect_all, is_needed, settle
from runnel.cluster.image import BrokerState, Delta, Image, Partition, Topic
from runnel.cluster.nodes import pieces
from runnel.model.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
    RunnelError,
    UnknownTopic,
)
from runnel.model.ids import BrokerId, PartitionKey, TopicId
from runnel.model.topic_config import TopicConfig

BASE = TopicConfig()
ONE, TWO = ids("12")
TWO_NEEDED = {"min.insync.replicas": "2"}
UNCLEAN = {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}


def epochs_follow(before: Partition, now: Partition) -> None:
    """A new leader, or none, is a new leader epoch; any change is a new partition epoch; no change is none."""
    assert now.leader_epoch - before.leader_epoch == int(now.leader != before.leader)
    assert now.epoch - before.epoch == int(shown(now) != shown(before) or now.replicas != before.replicas)


SETTLED = [
    ("all serve", "1|123|", "1 2 3", "1|123|"),
    ("a follower is gone", "1|123|", "1 2", "1|12|"),
    ("the leader is gone", "1|123|", "2 3", "2|23|"),
    ("the leader starts again faster than its session ends", "1|123|", "1* 2 3", "2|23|"),
    ("it is ready, but not let in yet", "1|123|", "1+ 2 3", "2|23|"),
    ("below the minimum, who leaves is eligible", "1|12|", "1 3", "1|1|2"),
    ("below the minimum, the leader that leaves is eligible", "1|12|", "2 3", "2|2|1"),
    ("two go at once, and both had everything", "1|123|", "3", "3|3|12"),
    ("the last one is waited for", "1|1|2", "3", "-|1|2"),
    ("everyone is waited for", "1|123|", "", "-|123|"),
    ("one of those waited for is back", "-|123|", "2", "2|2|13"),
    ("an eligible one leads when nobody is in sync", "1|1|2", "2 3", "2|2|1"),
    ("in sync goes before eligible", "-|3|12", "1 2 3", "3|3|12"),
    ("who stops hands over", "1|123|", "1! 2 3", "2|23|"),
    ("who stops hands over to an eligible one", "1|1|2", "1! 2 3", "2|2|1"),
    ("who stops leads on what nobody else can", "1|1|2", "1! 3", "1|1|2"),
    ("all stop", "1|123|", "1! 2! 3!", "1|123|"),
    ("a follower stops", "1|123|", "1 2! 3", "1|13|"),
    ("nobody comes from outside", "-|1|2", "3", "-|1|2"),
]


@pytest.mark.parametrize(("before", "alive", "expected"), [case[1:] for case in SETTLED], ids=[c[0] for c in SETTLED])
def test_who_leads_when_brokers_go_and_stop(before: str, alive: str, expected: str) -> None:
    image = image_of(alive, row(before), config=TWO_NEEDED)
    decision = settle(image, BASE)
    now = after(image, decision.delta)
    assert shown(now) == expected
    assert not decision.unclean
    epochs_follow(row(before), now)
    again = image.apply(decision.delta)
    assert not settle(again, BASE).delta  # all is done at once
    if decision.delta:
        assert again.topic_named("t").version == 4


def many(alive: str, *rows: str) -> Image:
    """Each row a topic of its own: a, b, c..."""
    topics = {}
    for name, text in zip("abcdefgh", rows, strict=False):
        topic_id = TopicId(UUID(int=ord(name)))
        topics[topic_id] = Topic(topic_id, name, (row(text),), TWO_NEEDED)
    return Image("c").apply(Delta(topics=topics, brokers=brokers(alive)))


def test_who_stops_hands_over_in_portions() -> None:
    image = many("1! 2 3", *["1|123|"] * 7)
    whole = image.apply(settle(image, BASE).delta)
    sizes = []
    while delta := settle(image, BASE, 3).delta:
        sizes.append(len(delta.topics))
        image = image.apply(delta)
    assert sizes == [3, 3, 1]
    assert image.topics == whole.topics


def test_what_somebody_misses_does_not_wait_for_a_portion() -> None:
    image = many("1! 2", *["1|12|"] * 4, *["3|23|", "2|23|"] * 2)
    assert {topic.name for topic in settle(image, BASE, 1).delta.topics.values() if topic} == {"a", "e", "f", "g", "h"}


def test_what_nobody_can_take_over_is_no_part_of_a_portion() -> None:
    image = many("1! 2 3", *["1|1|"] * 5, "1|123|", "1|12|")
    assert {topic.name for topic in settle(image, BASE, 1).delta.topics.values() if topic} == {"f"}


def test_the_order_of_the_replicas_decides() -> None:
    image = image_of("1 2 3", row("-|123|", replicas="312"))
    assert shown(after(image, settle(image, BASE).delta)) == "3|123|"


@pytest.mark.parametrize(
    ("before", "alive", "expected", "unclean"),
    [
        ("1|1|2", "3", "3|3|", True),
        ("1|1|2", "2 3", "2|2|1", False),  # not while there is a better one
        ("1|1|2", "1! 3", "1|1|2", False),
        ("-|12|", "", "-|12|", False),
    ],
)
def test_a_topic_may_prefer_any_leader_to_none(before: str, alive: str, expected: str, unclean: bool) -> None:
    image = image_of(alive, row(before), config=UNCLEAN)
    decision = settle(image, BASE)
    now = after(image, decision.delta)
    assert shown(now) == expected
    leader = now.leader
    assert decision.unclean == ([Unclean("t", PartitionKey(T, 0), leader)] if unclean else [])
    epochs_follow(row(before), now)


# --- coming back


BACK = [
    # what 1 comes back as, the partition, who else serves, flush mode, and what becomes of it
    ("clean", "-|1|", "", "commit", "1|1|"),
    ("clean", "2|2|1", "2", "commit", "2|2|1"),  # it keeps its place, and has to catch up
    ("clean", "-|123|", "", "os", "1|1|23"),
    ("crashed", "2|2|1", "2", "commit", "2|2|1"),  # what was synced it has still
    ("crashed", "2|12|", "2", "commit", "2|2|1"),
    ("crashed", "2|12|", "2", "os", "2|2|"),
    ("crashed", "2|123|", "2 3", "commit", "2|23|"),  # who goes on without it commits what it misses
    ("crashed", "2|2|1", "2", "os", "2|2|"),
    ("crashed", "-|1|", "", "commit", "1|1|"),
    ("crashed", "-|1|", "", "os", "1|1|"),  # the last one
    ("crashed", "-|12|", "", "commit", "1|1|2"),
    ("crashed", "-|12|", "", "os", "-|2|"),  # 2 may have more
    ("crashed", "-|1|2", "", "commit", "1|1|2"),
    ("crashed", "-|1|2", "", "interval", "-||2"),
    ("crashed", "-|2|1", "", "os", "-|2|"),
    ("new disk", "-|1|", "", "commit", "-||"),
    ("new disk", "-|12|", "", "commit", "-|2|"),
    ("new disk", "-|1|3", "3", "commit", "3|3|"),
    ("damaged", "-|1|", "", "commit", "-||"),
    ("damaged", "2|2|1", "2", "commit", "2|2|"),
]


@pytest.mark.parametrize(("how", "before", "others", "mode", "expected"), BACK)
def test_what_a_broker_that_comes_back_may_keep(how: str, before: str, others: str, mode: str, expected: str) -> None:
    back = replace(
        brokers("1+")[ONE],
        clean=how == "clean",
        new_disk=how == "new disk",
        damaged=((T, 0),) if how == "damaged" else (),
    )
    image = image_of(others, row(before), config={**TWO_NEEDED, "flush.mode": mode})
    image = image.apply(Delta(brokers={ONE: back}))
    assert elections.waiting(image) == ONE
    decision = admit(image, ONE, BASE)
    now = after(image, decision.delta)
    assert shown(now) == expected
    epochs_follow(row(before), now)
    let_in = image.apply(decision.delta).brokers[ONE]
    assert (let_in.state, let_in.damaged, let_in.version) == (BrokerState.SERVING, (), 1)
    assert elections.waiting(image.apply(decision.delta)) is None


def test_who_is_back_leads_in_a_new_epoch_what_it_led_before() -> None:
    led = row("1|1|", replicas="1")
    image = image_of("1+", led)
    nobody = image.apply(settle(image, BASE).delta)
    assert shown(after(nobody, Delta())) == "-|1|"
    back = after(nobody, admit(nobody, ONE, BASE).delta)
    assert (shown(back), back.leader_epoch) == ("1|1|", led.leader_epoch + 2)


def test_a_broker_that_starts_or_serves_is_not_let_in_again() -> None:
    for alive in ("1*", "1", "1!"):
        assert not admit(image_of(alive, row("1|1|")), ONE, BASE).delta
    assert not admit(image_of("2+", row("1|1|")), ONE, BASE).delta


def test_a_copy_that_is_found_damaged_while_it_serves_is_out_of_sync() -> None:
    other = row("1|12|", replicas="12")
    image = image_of("1 2", row("1|12|", replicas="12"), other)
    image = image.apply(Delta(brokers={ONE: replace(image.brokers[ONE], damaged=((T, 0),))}))
    decision = admit(image, ONE, BASE)
    found = image.apply(decision.delta)
    assert [shown(each) for each in found.topic_named("t").partitions] == ["2|2|", "1|12|"]
    assert (found.brokers[ONE].state, found.brokers[ONE].damaged) == (BrokerState.SERVING, ())


@pytest.mark.parametrize("before", ["2|12|", "2|2|"])
def test_what_a_copy_told_before_it_was_found_damaged_counts_no_more(before: str) -> None:
    """Its leader may be asking just now to let it in, by what it told: that belongs to an epoch that is over."""
    image = image_of("1 2", row(before, replicas="12"))
    image = image.apply(Delta(brokers={ONE: replace(image.brokers[ONE], damaged=((T, 0),))}))
    found = after(image, admit(image, ONE, BASE).delta)
    assert (shown(found), found.leader_epoch) == ("2|2|", row(before, replicas="12").leader_epoch + 1)


def test_all_crashed_at_once_and_come_back_one_after_the_other() -> None:
    """Power loss: what was synced is there, so the first one leads; without syncs, the last one."""
    for mode, expected in (("commit", ["1|1|23", "1|1|23", "1|1|23"]), ("os", ["-|23|", "-|3|", "3|3|"])):
        image = image_of("", row("1|123|"), config={**TWO_NEEDED, "flush.mode": mode})
        image = image.apply(settle(image, BASE).delta)
        seen = []
        for broker in ids("123"):
            back = replace(brokers(f"{broker}+")[broker], clean=False)
            image = image.apply(Delta(brokers={broker: back}))
            image = image.apply(admit(image, broker, BASE).delta)
            seen.append(shown(after(image, Delta())))
        assert seen == expected


def test_of_two_that_crash_the_second_with_a_rotten_copy_the_first_leads() -> None:
    """The session of the second had not ended when the first came back: it seemed to serve."""
    image = image_of("3", row("3|3|1"), config=TWO_NEEDED)
    for broker, damaged in ((ONE, ()), (ids("3")[0], ((T, 0),))):
        back = replace(brokers(f"{broker}+")[broker], clean=False, damaged=damaged)
        image = image.apply(Delta(brokers={broker: back}))
        image = image.apply(settle(image, BASE).delta)
        image = image.apply(admit(image, broker, BASE).delta)
    assert shown(after(image, Delta())) == "1|1|"


# --- settings


def test_the_eligible_are_forgotten_in_the_change_that_lowers_the_minimum() -> None:
    """From then on the leader commits without them: it must not see the new setting before they are gone."""
    lower = [ConfigChange("min.insync.replicas", "1")]
    image = image_of("1 2 3", row("1|1|2"), config=TWO_NEEDED)
    decision = controller.alter_config(image, TopicResource("t"), lower, incremental=True, base=BASE)
    (topic,) = decision.delta.topics.values()
    assert topic is not None
    assert (shown(topic.partitions[0]), topic.config, topic.version) == ("1|1|", {"min.insync.replicas": "1"}, 4)
    epochs_follow(row("1|1|2"), topic.partitions[0])


def test_they_are_forgotten_before_the_minimum_of_all_topics_is_lowered() -> None:
    everywhere = BrokerResource(None)
    image = image_of("1 2 3", row("1|1|"))
    raised = controller.alter_config(
        image, everywhere, [ConfigChange("min.insync.replicas", "2")], incremental=True, base=BASE
    )
    assert not raised.delta.topics
    image = image.apply(raised.delta)
    image = image.apply(Delta(topics={T: replace(image.topics[T], partitions=(row("1|1|2"),))}))
    back = [ConfigChange("min.insync.replicas", None, ConfigOp.DELETE)]
    lowered = controller.alter_config(image, everywhere, back, incremental=True, base=BASE)
    assert shown(after(image, lowered.delta)) == "1|1|"
    first, second = pieces(image, lowered.delta)
    assert first.delta.topics
    assert second.delta.configs


def test_a_topic_that_allows_unclean_elections_from_now_on_gets_a_leader() -> None:
    image = image_of("3", row("-|1|2"), config=TWO_NEEDED)
    allow = [ConfigChange("unclean.leader.election.enable", "true")]
    decision = controller.alter_config(image, TopicResource("t"), allow, incremental=True, base=BASE)
    assert shown(after(image, decision.delta)) == "3|3|"
    assert [each.leader for each in decision.unclean] == [3]


# --- asked for


def asked(image: Image, *, unclean: bool, places: Sequence[tuple[str, int]] = (("t", 0),)) -> str | type[RunnelError]:
    decision = elect(image, places, BASE, unclean=unclean)
    (result,) = decision.results
    if isinstance(result, RunnelError):
        assert not decision.delta
        return type(result)
    before = image.topic_named("t").partitions[0]
    epochs_follow(before, result)
    return shown(result)


@pytest.mark.parametrize(
    ("before", "alive", "expected"),
    [
        ("2|123|", "1 2 3", "1|123|"),
        ("-|123|", "1 2 3", "1|123|"),
        ("1|123|", "1 2 3", ElectionNotNeeded),
        ("2|23|", "1 2 3", PreferredLeaderNotAvailable),
        ("2|123|", "2 3", PreferredLeaderNotAvailable),
        ("2|123|", "1! 2 3", PreferredLeaderNotAvailable),
        ("2|2|1", "1 2 3", PreferredLeaderNotAvailable),
    ],
)
def test_the_preferred_leader(before: str, alive: str, expected: object) -> None:
    assert asked(image_of(alive, row(before), config=TWO_NEEDED), unclean=False) == expected


@pytest.mark.parametrize(
    ("before", "alive", "expected"),
    [
        ("-|1|", "2 3", "2|2|"),
        ("-||", "1 2 3", "1|1|"),
        ("-|1|2", "2 3", "2|2|1"),
        ("2|2|", "2 3", ElectionNotNeeded),
        ("-|1|", "1* 2! 3+", EligibleLeadersNotAvailable),
    ],
)
def test_any_leader(before: str, alive: str, expected: object) -> None:
    assert asked(image_of(alive, row(before), config=TWO_NEEDED), unclean=True) == expected


def test_unknown_partitions_are_named_as_such() -> None:
    image = image_of("1 2 3", row("2|123|"))
    for place in (("u", 0), ("t", 1), ("t", -1)):
        assert asked(image, unclean=False, places=[place]) is UnknownTopic


def test_all_partitions_that_need_it_are_led_as_preferred() -> None:
    rows = row("2|123|"), row("1|123|"), row("3|23|"), row("3|123|", replicas="231"), row("-|1|")
    image = image_of("1 2 3", *rows)
    delta = elect_all(image, BASE, unclean=False).delta
    found = [shown(each) for each in image.apply(delta).topic_named("t").partitions]
    assert found == ["1|123|", "1|123|", "3|23|", "2|123|", "1|1|"]
    helpless = image_of("2 3", *rows)
    decision = elect_all(helpless, BASE, unclean=True)
    assert [each.key.number for each in decision.unclean] == [4]


def test_a_broker_is_needed_until_others_lead_what_they_can() -> None:
    assert is_needed(image_of("1! 2", row("1|12|")), ONE)
    assert is_needed(image_of("1! 2", row("1|1|2")), ONE)
    assert is_needed(image_of("1! 2", row("2|12|")), ONE)  # its leader waits for it
    assert not is_needed(image_of("1! 2", row("2|2|1")), ONE)
    assert not is_needed(image_of("1! 2", row("1|1|")), ONE)
    assert not is_needed(image_of("1! 2!", row("1|12|")), ONE)
    assert not is_needed(image_of("1! 2+", row("1|12|")), ONE)


def test_topics_that_nothing_happens_to_are_the_very_same() -> None:
    quiet = Topic(TopicId(UUID(int=2)), "quiet", (row("2|23|", replicas="23"),))
    image = image_of("2 3", row("1|123|"), row("2|23|")).apply(Delta(topics={quiet.id: quiet}))
    delta = settle(image, BASE).delta
    assert set(delta.topics) == {T}
    topic = delta.topics[T]
    assert topic is not None
    assert topic.partitions[1] is image.topic_named("t").partitions[1]
    assert TWO in topic.partitions[0].isr
    assert BrokerId(1) not in topic.partitions[0].isr
