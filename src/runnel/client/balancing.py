"""Where replicas should lie: plans for balancing, draining, and for more or fewer copies. Pure; who plans is a client.

Rule 1: a partition keeps its number of replicas, each on a broker of its own, unless that number is what is asked for.
Rule 2: no plan spreads a partition over fewer racks than it has now; balancing spreads it over as many as it can have.
Rule 3: a replica moves only if the broker it leaves holds at least two more than the one it goes to (or must be left).
        So the fewest replicas move that bring the brokers within one of each other, as far as racks allow that.
Rule 4: brokers are preferred leaders of equally many partitions, give or take one, as far as replicas lie so. That is
        a matter of their order: no data moves for it.
Rule 5: among equals, a topic is spread over brokers first, and small partitions move before large ones.

Brokers that are not named hold what they hold, and get nothing. A broker without a rack is a rack of its own.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from runnel.client.metadata import TopicPartition
from runnel.model.errors import InvalidReplicationFactor

Replicas: TypeAlias = tuple[int, ...]
Held: TypeAlias = Mapping[TopicPartition, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Move:
    """One partition before and after; the first replica is the preferred leader."""

    where: TopicPartition
    before: Replicas
    after: Replicas
    size_bytes: int = 0  # of one replica

    @property
    def adding(self) -> Replicas:
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removing(self) -> Replicas:
        return tuple(broker for broker in self.before if broker not in self.after)

    @property
    def bytes_moved(self) -> int:
        return self.size_bytes * len(self.adding)


@dataclass(frozen=True, slots=True)
class Ground:
    """What a plan starts from."""

    racks: Mapping[int, str | None]  # of the brokers that can hold replicas
    held: Held
    sizes: Mapping[TopicPartition, int]
    fixed: Collection[TopicPartition] = ()  # partitions that stay as they are; they count as load


def balance(ground: Ground) -> list[Move]:
    """Spread replicas and leaders over all brokers, and each partition over racks."""
    board = _Board(ground)
    for where in board.movable():
        board.spread_over_racks(where)
    board.level()
    board.spread_leaders(board.movable())
    return board.moves()


def drain(ground: Ground, broker: int) -> list[Move]:
    """Take everything from one broker, which may be gone already."""
    rest = {number: rack for number, rack in ground.racks.items() if number != broker}
    board = _Board(Ground(rest, ground.held, ground.sizes, ground.fixed))
    touched = [where for where in board.movable() if broker in board.replicas[where]]
    for where in touched:
        board.hand_over(where, broker, board.best(where, without=broker))
    board.spread_leaders(touched)
    return board.moves()


def replicate(ground: Ground, partitions: Iterable[TopicPartition], count: int) -> list[Move]:
    """Give these partitions so many replicas, more or fewer than they have."""
    if not 1 <= count <= len(ground.racks):
        serve = "1 broker serves" if len(ground.racks) == 1 else f"{len(ground.racks)} brokers serve"
        raise InvalidReplicationFactor(f"{count} replicas can't be had: {serve}")
    board = _Board(ground)
    wanted = [where for where in partitions if where not in ground.fixed]
    for where in wanted:
        while len(board.replicas[where]) < count:
            board.add(where, board.best(where))
        while len(board.replicas[where]) > count:
            board.remove(where, board.most_dispensable(where))
    board.spread_leaders(wanted)
    return board.moves()


def assign(ground: Ground, targets: Mapping[TopicPartition, Sequence[int]]) -> list[Move]:
    """What it means to give partitions these replicas; those that have them already are left out."""
    return [
        Move(where, tuple(ground.held[where]), tuple(target), ground.sizes.get(where, 0))
        for where, target in targets.items()
        if tuple(ground.held[where]) != tuple(target)
    ]


class _Board:
    """All replicas while a plan is made."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.racks = {n: rack or f"broker {n}" for n, rack in sorted(ground.racks.items())}
        self.replicas = {where: list(held) for where, held in sorted(ground.held.items())}
        self._holds: dict[int, dict[str, set[TopicPartition]]] = {n: {} for n in self.racks}
        self._count = dict.fromkeys(self.racks, 0)
        self._preferred = dict.fromkeys(self.racks, 0)
        for where, held in self.replicas.items():
            for broker in held:
                self._note(where, broker, 1)
            if held and held[0] in self._preferred:
                self._preferred[held[0]] += 1

    def _note(self, where: TopicPartition, broker: int, change: int) -> None:
        if broker not in self._count:
            return
        self._count[broker] += change
        topics = self._holds[broker]
        if change > 0:
            topics.setdefault(where.topic, set()).add(where)
            return
        topics[where.topic].discard(where)
        if not topics[where.topic]:
            del topics[where.topic]

    def movable(self) -> list[TopicPartition]:
        return [where for where in self.replicas if where not in self._ground.fixed]

    def moves(self) -> list[Move]:
        return assign(self._ground, self.replicas)

    # --- changing one partition
    def add(self, where: TopicPartition, broker: int) -> None:
        if not self.replicas[where]:
            self._preferred[broker] += 1
        self.replicas[where].append(broker)
        self._note(where, broker, 1)

    def remove(self, where: TopicPartition, broker: int) -> None:
        held = self.replicas[where]
        first = held[0]
        held.remove(broker)
        self._note(where, broker, -1)
        if broker == first:
            self._prefer_instead(first, held[0])

    def _prefer_instead(self, old: int, new: int) -> None:
        for broker, change in ((old, -1), (new, 1)):
            if broker in self._preferred:
                self._preferred[broker] += change

    def hand_over(self, where: TopicPartition, old: int, new: int) -> None:
        """Let one broker take another's place. A new replica is not preferred where an old one can be."""
        self.add(where, new)
        self.remove(where, old)

    def prefer(self, where: TopicPartition, broker: int) -> None:
        held = self.replicas[where]
        self._prefer_instead(held[0], broker)
        held.remove(broker)
        held.insert(0, broker)

    # --- choosing brokers
    def best(self, where: TopicPartition, without: int | None = None) -> int:
        """Who should take one more replica: of a rack that has none, then with the fewest, then of that topic."""
        held = self.replicas[where]
        used = {self.racks.get(broker) for broker in held if broker != without}
        able = [broker for broker in self.racks if broker not in held]
        if not able:
            raise InvalidReplicationFactor(
                f"partition {where} can't lose a broker: all brokers that serve hold a replica ({len(held)});"
                " add a broker, or give the topic fewer replicas"
            )
        return min(able, key=lambda n: (self.racks[n] in used, self._count[n], self._of_topic(n, where.topic), n))

    def _of_topic(self, broker: int, topic: str) -> int:
        return len(self._holds[broker].get(topic, ()))

    def most_dispensable(self, where: TopicPartition) -> int:
        """Who should give its replica up: one that is gone, then one whose rack has another, then who holds most."""
        held = self.replicas[where]
        racks = [self.racks.get(broker) for broker in held]

        def worth(broker: int) -> tuple[bool, bool, int, int]:
            here = self.racks.get(broker)
            return here is None, racks.count(here) > 1, self._count.get(broker, 0), held.index(broker)

        return max(held[1:] or held, key=worth)

    def _rack_count(self, held: Iterable[int]) -> int:
        return len({self.racks.get(broker, f"gone {broker}") for broker in held})

    # --- balancing
    def spread_over_racks(self, where: TopicPartition) -> None:
        held = self.replicas[where]
        possible = min(len(held), len(set(self.racks.values())))
        while self._rack_count(held) < possible:
            racks = [self.racks.get(broker) for broker in held]
            doubled = [b for b in held if b in self.racks and racks.count(self.racks[b]) > 1]
            if not doubled:
                return
            crowded = max(doubled, key=lambda b: (self._count[b], held.index(b)))
            self.hand_over(where, crowded, self.best(where, without=crowded))

    def level(self) -> None:
        """Move replicas from who holds most to who holds least, as long as that evens them out."""
        while self._level_some():
            pass

    def _level_some(self) -> bool:
        order = sorted(self._count, key=lambda n: (self._count[n], n))
        for heavy in reversed(order):
            for light in order:
                if self._count[heavy] - self._count[light] < 2:
                    break
                if self._shift(heavy, light):
                    return True
        return False

    def _shift(self, heavy: int, light: int) -> bool:
        """Move some replicas between two brokers: one of each of the topics that are spread worst over them.

        Not more than bring one of the two to the average: the rest is for others to give or to get.
        """
        average = sum(self._count.values()) // len(self._count)
        room = max(1, min(self._count[heavy] - average, average - self._count[light]))

        def evenness(topic: str) -> int:
            return self._of_topic(light, topic) - self._of_topic(heavy, topic)

        moved, least = 0, None
        for value, topic in sorted((evenness(topic), topic) for topic in self._holds[heavy]):
            if moved == room or (least is not None and value > least):
                break
            if (where := self._smallest(self._holds[heavy][topic], heavy, light)) is not None:
                self.hand_over(where, heavy, light)
                moved, least = moved + 1, value
        return moved > 0

    def _smallest(self, partitions: Iterable[TopicPartition], heavy: int, light: int) -> TopicPartition | None:
        fit = [where for where in partitions if self._can_move(where, heavy, light)]
        return min(fit, key=lambda where: (self._ground.sizes.get(where, 0), where), default=None)

    def _can_move(self, where: TopicPartition, heavy: int, light: int) -> bool:
        held = self.replicas[where]
        if light in held or where in self._ground.fixed:
            return False
        after = [broker for broker in held if broker != heavy] + [light]
        return self._rack_count(after) >= self._rack_count(held)

    # --- leaders
    def spread_leaders(self, partitions: Sequence[TopicPartition]) -> None:
        """Change who is preferred, along chains of brokers if need be, until no two differ by more than one."""
        led: dict[int, dict[TopicPartition, None]] = {n: {} for n in self.racks}
        for where in partitions:
            if (first := self.replicas[where][0]) in led:
                led[first][where] = None
        while chain := self._chain(led):
            for where, old, new in chain:
                del led[old][where]
                led[new][where] = None
                self.prefer(where, new)

    def _chain(self, led: Mapping[int, Iterable[TopicPartition]]) -> list[tuple[TopicPartition, int, int]]:
        """The shortest chain from who leads most to who leads at least two fewer: (partition, from, to) each."""
        for start in sorted(led, key=lambda n: (-self._preferred[n], n)):
            chain = _shortest(start, lambda n: self._steps(led[n], n), self._goal(start))
            if chain:
                return chain
        return []

    def _goal(self, start: int) -> Callable[[int], bool]:
        return lambda n: self._preferred[start] - self._preferred[n] >= 2

    def _steps(self, led: Iterable[TopicPartition], broker: int) -> Iterable[tuple[TopicPartition, int, int]]:
        for where in led:
            for other in self.replicas[where][1:]:
                if other in self.racks:
                    yield where, broker, other


def _shortest(
    start: int, steps: Callable[[int], Iterable[tuple[TopicPartition, int, int]]], is_goal: Callable[[int], bool]
) -> list[tuple[TopicPartition, int, int]]:
    """The steps to the nearest goal, by breadth; none if there is none."""
    came_by: dict[int, tuple[TopicPartition, int, int] | None] = {start: None}
    queue = deque([start])
    while queue:
        for step in steps(queue.popleft()):
            if step[2] not in came_by:
                came_by[step[2]] = step
                if is_goal(step[2]):
                    return _back(step[2], came_by)
                queue.append(step[2])
    return []


def _back(
    goal: int, came_by: Mapping[int, tuple[TopicPartition, int, int] | None]
) -> list[tuple[TopicPartition, int, int]]:
    chain = []
    while (step := came_by[goal]) is not None:
        chain.append(step)
        goal = step[1]
    return chain[::-1]
