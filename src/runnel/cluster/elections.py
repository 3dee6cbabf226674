"""Who leads: what follows when brokers go, stop, and come back, and what operators may ask for. Pure.

Every function looks at an image and returns what is to change. What holds for one partition says `drafting`.

Rule 1: nobody has to remember what happened. `settle` looks at who serves now, so a new controller does the same
        thing as the one before it would have done.
Rule 2: a broker that comes back has lost its leaderships: it led in another life. It is admitted with what it may keep:
        nothing of a new disk; nothing of a partition whose copy it lost; after a crash, its place in the ISR only
        while nobody else who serves is in sync. If what it held was synced it has that still, and stays eligible; if
        not, it may lead only if it is the last one left.
Rule 3: a broker that stops hands over in portions. Until its turn comes each partition is served as before; then all
        its brokers hear of it at about the same time, having no thousands of others to see to.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from runnel.cluster.decision import Decision
from runnel.cluster.drafting import Changes, Draft, Living, RuleBook, Rules
from runnel.cluster.image import NO_LEADER, AdmittedBroker, Broker, BrokerState, Delta, Image, Partition, Topic
from runnel.model.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
    RunnelError,
    UnknownTopic,
    as_value,
)
from runnel.model.ids import BrokerId
from runnel.model.topic_config import TopicConfig


def settle(image: Image, base: TopicConfig, handed_over_max: int | None = None) -> Decision[Partition]:
    """Let every partition be led by somebody who serves, as far as that can be.

    Of what nobody misses yet, as brokers that stop go on with it, about so many partitions at most (rule 3).
    """
    living, book, changes = Living.of(image.brokers.values()), RuleBook(image, base), Changes(image)
    left = math.inf if handed_over_max is None else handed_over_max
    for topic in image.topics.values():
        rules = book.of(topic)
        numbers = _unsettled(topic, living, rules)
        if numbers and (left > 0 or not all(living.all_alive(topic.partitions[number]) for number in numbers)):
            _settle(changes, topic, numbers, living, rules)
            if topic.id in changes:  # else nobody can take it over
                left -= len(numbers)
    return Decision(changes.delta, unclean=changes.unclean)


def settle_topic(image: Image, topic: Topic, base: TopicConfig) -> Decision[Topic]:
    """A topic whose settings change, with what follows from them."""
    living, rules, changes = Living.of(image.brokers.values()), RuleBook(image, base).of(topic), Changes(image)
    _settle(changes, topic, _unsettled(topic, living, rules), living, rules)
    partitions = tuple(changes.partition(topic, number) for number in range(len(topic.partitions)))
    return Decision(Delta(topics={topic.id: replace(topic, partitions=partitions)}), unclean=changes.unclean)


def _unsettled(topic: Topic, living: Living, rules: Rules) -> list[int]:
    return [number for number, each in enumerate(topic.partitions) if not _is_settled(each, living, rules)]


def _settle(changes: Changes, topic: Topic, numbers: Iterable[int], living: Living, rules: Rules) -> None:
    for number in numbers:
        draft = Draft(topic.partitions[number], rules)
        draft.settle(living)
        changes.put(topic, number, draft)


def _is_settled(partition: Partition, living: Living, rules: Rules) -> bool:
    """Most partitions have nothing to do with a change: tell them fast."""
    if partition.leader not in living.serving or not living.serving.issuperset(partition.isr):
        return False
    return not partition.elr or len(partition.isr) < min(rules.minimum, len(partition.replicas))


def admit(image: Image, broker: BrokerId, base: TopicConfig) -> Decision[Partition]:
    """Let a broker that is ready serve; take in what one that serves says of its copies (rule 2)."""
    registered = image.brokers.get(broker)
    if registered is None or not _wants_in(registered):
        return Decision(Delta())
    serving = replace(registered, state=_admitted(registered.state), damaged=(), version=registered.version + 1)
    before = Living.of(each for each in image.brokers.values() if each.id != broker)
    after = Living.of({**image.brokers, broker: serving}.values())
    book, here, changes = RuleBook(image, base), RuleBook(image, base, broker), Changes(image)
    damaged = frozenset(registered.damaged)
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            trusted = broker in partition.isr or broker in partition.elr
            is_damaged = (topic.id, number) in damaged and broker in partition.replicas
            if not trusted and not is_damaged and not (partition.leader == NO_LEADER and broker in partition.replicas):
                continue  # nothing follows from it
            draft = Draft(partition, book.of(topic))
            if is_damaged or _lost_disk(registered):
                draft.lose(broker)
                draft.renew = registered.state is not BrokerState.READY  # in another life nothing was told yet
            elif _crashed(registered):
                _come_back(draft, broker, before, here.of(topic))
            draft.settle(after)
            changes.put(topic, number, draft)
    delta = Delta(topics=changes.delta.topics, brokers={broker: serving}, admitted=_noted(registered))
    return Decision(delta, unclean=changes.unclean)


def _noted(broker: Broker) -> Mapping[BrokerId, AdmittedBroker]:
    """The admission of a broker that begins to serve: its directory is the broker's from then on."""
    if broker.state is not BrokerState.READY:
        return {}
    return {broker.id: AdmittedBroker(broker.id, broker.directory, broker.rack, broker.directory_version)}


def _wants_in(broker: Broker) -> bool:
    return broker.state is BrokerState.READY or (broker.alive and bool(broker.damaged))


def _admitted(state: BrokerState) -> BrokerState:
    return BrokerState.SERVING if state is BrokerState.READY else state


def _lost_disk(broker: Broker) -> bool:
    return broker.state is BrokerState.READY and broker.new_disk


def _crashed(broker: Broker) -> bool:
    return broker.state is BrokerState.READY and not broker.clean


def _come_back(draft: Draft, broker: BrokerId, others: Living, rules: Rules) -> None:
    """What a crash costs in one partition."""
    if not others.serving.isdisjoint(draft.isr):
        draft.leave(broker) if rules.synced else draft.lose(broker)
    elif not rules.synced and draft.knowing != {broker}:
        draft.lose(broker)


def waiting(image: Image) -> BrokerId | None:
    """A broker that has something to say to the controller."""
    return next((broker.id for broker in image.brokers.values() if _wants_in(broker)), None)


def anyone_stops(image: Image) -> bool:
    return bool(Living.of(image.brokers.values()).stopping)


def is_needed(image: Image, broker: BrokerId) -> bool:
    """Whether a broker leads, or helps to commit, anything that others could do without it."""
    others = Living.of(image.brokers.values()).serving - {broker}

    def in_use(partition: Partition) -> bool:
        if broker in partition.isr and not others.isdisjoint(partition.isr):
            return True
        return partition.leader == broker and not others.isdisjoint(partition.elr)

    return any(in_use(partition) for topic in image.topics.values() for partition in topic.partitions)


# --- asked for


def elect_all(image: Image, base: TopicConfig, *, unclean: bool) -> Decision[Partition]:
    """Elect wherever that changes anything."""
    return elect(image, list(_needy(image, unclean)), base, unclean=unclean)


def elect(image: Image, asked: Sequence[tuple[str, int]], base: TopicConfig, *, unclean: bool) -> Decision[Partition]:
    """Give partitions their preferred leader, or, unclean, any leader at all."""
    living, book, changes = Living.of(image.brokers.values()), RuleBook(image, base), Changes(image)
    results: list[Partition | RunnelError] = []
    keys: list[object] = []
    for name, number in asked:
        try:
            topic = image.topic_named(name)
            draft = _drafted(changes, topic, number, book)
            _elect_any(draft, living, name, number) if unclean else _elect_preferred(draft, living, name, number)
            results.append(changes.put(topic, number, draft))
            keys.append(topic.id)
        except RunnelError as error:
            results.append(as_value(error))
            keys.append(None)
    return Decision(changes.delta, results, keys, changes.unclean)


def _drafted(changes: Changes, topic: Topic, number: int, book: RuleBook) -> Draft:
    if not 0 <= number < len(topic.partitions):
        raise UnknownTopic(f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, not {number}")
    return Draft(changes.partition(topic, number), book.of(topic))


def _needy(image: Image, unclean: bool) -> Iterable[tuple[str, int]]:
    """The partitions that an election would change."""
    living = Living.of(image.brokers.values())
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            first = partition.replicas[0]
            better = partition.leader != first and first in living.serving and first in partition.isr
            helpless = partition.leader == NO_LEADER and not living.serving.isdisjoint(partition.replicas)
            if helpless if unclean else better:
                yield topic.name, number


def _elect_preferred(draft: Draft, living: Living, name: str, number: int) -> None:
    first = draft.replicas[0]
    if draft.leader == first:
        raise ElectionNotNeeded(f"{name}-{number} is led by broker {first}, its preferred leader, already")
    if first not in living.serving or first not in draft.isr:
        raise PreferredLeaderNotAvailable(
            f"{name}-{number} can't be led by broker {first} now: it does not serve, or is not in sync; try again later"
        )
    draft.leader = first


def _elect_any(draft: Draft, living: Living, name: str, number: int) -> None:
    if draft.leader != NO_LEADER:
        raise ElectionNotNeeded(f"{name}-{number} is led by broker {draft.leader}: nothing has to be given up")
    draft.settle(living, unclean=True)
    if draft.leader == NO_LEADER:
        raise EligibleLeadersNotAvailable(
            f"{name}-{number} has no replica that serves: start one of the brokers {list(draft.replicas)}"
        )
