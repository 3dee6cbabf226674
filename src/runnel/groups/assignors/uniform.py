"""`uniform`: everybody gets as many partitions as fairness allows, and keeps what it has as far as that goes.

It works on counts first (how many partitions of each topic a member shall have), and picks partitions last:
  1. each member keeps what it has, up to the fair share;
  2. what is left goes to the subscriber with the least;
  3. as long as a chain of hand-overs leads from a member to one that has at least two less, it is used.
Nothing of this is done where everything is owned already, as evenly as can be: then all stays as it is. (What is fair
for one member may be more than an even part of all, where others want fewer topics.)
Step 3 makes the loads as even as the subscriptions permit, whatever they are: no chain left means that no other
assignment is more even (the theorem of optimal semi-matchings).
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from runnel.groups.assignors.claims import Assignment, Claimant
from runnel.model.ids import PartitionKey, TopicId


def assign_uniform(claimants: Iterable[Claimant], counts: Mapping[TopicId, int]) -> Assignment:
    return _Plan(sorted(claimants, key=lambda each: (each.rank, each.member_id)), counts).assignment()


class _Plan:
    """Members and topics are small numbers here."""

    def __init__(self, claimants: list[Claimant], counts: Mapping[TopicId, int]) -> None:
        self.claimants = claimants
        self.topics = sorted({topic_id for each in claimants for topic_id in each.topics})
        self.counts = [counts[topic_id] for topic_id in self.topics]
        number = {topic_id: topic for topic, topic_id in enumerate(self.topics)}
        self.subscribers: list[list[int]] = [[] for _ in self.topics]
        for member, each in enumerate(claimants):
            for topic_id in each.topics:
                self.subscribers[number[topic_id]].append(member)
        self._claimed: set[PartitionKey] = set()
        self.owned = [self._owned(each, number) for each in claimants]
        self.shares: list[dict[int, int]] = []  # of each member: topic -> how many partitions
        self.loads: list[int] = []

    def _owned(self, claimant: Claimant, number: dict[TopicId, int]) -> dict[int, list[int]]:
        """By topic, what still counts: it is subscribed to, exists, and nobody else claims it too."""
        owned: dict[int, list[int]] = {}
        for key in claimant.owned - self._claimed:
            if key.topic_id in claimant.topics and 0 <= key.number < self.counts[number[key.topic_id]]:
                owned.setdefault(number[key.topic_id], []).append(key.number)
        self._claimed |= claimant.owned
        return owned

    def assignment(self) -> Assignment:
        if self.topics and not self._is_even():
            self._keep()
            self._fill()
            self._even_out()
        return self._pick()

    # --- counts
    def _is_even(self) -> bool:
        """Whether all is owned, and no chain of hand-overs would make it more even."""
        self.shares = [{topic: len(numbers) for topic, numbers in owned.items()} for owned in self.owned]
        self.loads = [sum(share.values()) for share in self.shares]
        return sum(self.loads) == sum(self.counts) and next(self._chains(), None) is None

    def _keep(self) -> None:
        fair = -(-sum(self.counts) // len(self.claimants))  # rounded up
        self.shares, self.loads = [], []
        for owned in self.owned:
            share, left = {}, fair
            # What has few other takers is kept first.
            for topic in sorted(owned, key=lambda each: (len(self.subscribers[each]), each)):
                share[topic] = min(len(owned[topic]), left)
                left -= share[topic]
            self.shares.append(share)
            self.loads.append(fair - left)

    def _fill(self) -> None:
        given = [0] * len(self.topics)
        for share in self.shares:
            for topic, count in share.items():
                given[topic] += count
        for topic in sorted(range(len(self.topics)), key=lambda each: (len(self.subscribers[each]), each)):
            self._fill_topic(topic, self.counts[topic] - given[topic])

    def _fill_topic(self, topic: int, missing: int) -> None:
        """Give each to the least loaded; of equals, first to one that had more of this topic."""
        if not missing:
            return
        heap = [(self.loads[member], -self._lost(member, topic), member) for member in self.subscribers[topic]]
        heapq.heapify(heap)
        for _ in range(missing):
            member = heap[0][2]
            self._give(member, topic, 1)
            heapq.heapreplace(heap, (self.loads[member], -self._lost(member, topic), member))

    def _lost(self, member: int, topic: int) -> int:
        return max(len(self.owned[member].get(topic, ())) - self.shares[member].get(topic, 0), 0)

    def _give(self, member: int, topic: int, count: int) -> None:
        share = self.shares[member]
        share[topic] = share.get(topic, 0) + count
        self.loads[member] += count

    def _even_out(self) -> None:
        for reached, end in self._chains():
            self._hand_over(reached, end)

    def _chains(self) -> Iterator[tuple[dict[int, tuple[int, int]], int]]:
        """Each is to be used before the next one is asked for.

        Start from the most loaded. Whatever can be reached from a member without a chain can't be part of one.
        """
        heap = [(-load, member) for member, load in enumerate(self.loads)]
        heapq.heapify(heap)
        settled: set[int] = set()
        while heap:
            load, member = heapq.heappop(heap)
            if member in settled or -load != self.loads[member]:
                continue
            reached, end = self._search(member, settled)
            if end is None:
                settled.update(reached)
            else:
                yield reached, end
                heapq.heappush(heap, (-self.loads[member], member))
                heapq.heappush(heap, (-self.loads[end], end))

    def _search(self, start: int, settled: set[int]) -> tuple[dict[int, tuple[int, int]], int | None]:
        """Breadth first from a member, over topics it has a part of, to a subscriber that has two less."""
        reached: dict[int, tuple[int, int]] = {start: (-1, -1)}  # member -> (from whom, which topic)
        seen: set[int] = set()
        queue = deque([start])
        enough = self.loads[start] - 2
        while queue:
            giver = queue.popleft()
            for topic, count in self.shares[giver].items():
                if not count or topic in seen:
                    continue
                seen.add(topic)
                for taker in self.subscribers[topic]:
                    if taker not in reached and taker not in settled:
                        reached[taker] = (giver, topic)
                        if self.loads[taker] <= enough:
                            return reached, taker
                        queue.append(taker)
        return reached, None

    def _hand_over(self, reached: dict[int, tuple[int, int]], end: int) -> None:
        taker = end
        while (step := reached[taker]) != (-1, -1):
            giver, topic = step
            self._give(taker, topic, 1)
            self._give(giver, topic, -1)
            taker = giver

    # --- partitions
    def _pick(self) -> Assignment:
        picked: list[list[PartitionKey]] = [[] for _ in self.claimants]
        for topic, topic_id in enumerate(self.topics):
            free = set(range(self.counts[topic]))
            missing: dict[int, int] = {}
            for member in self.subscribers[topic]:
                share = self.shares[member].get(topic, 0)
                kept = sorted(self.owned[member].get(topic, ()))[:share]
                free.difference_update(kept)
                picked[member] += [PartitionKey(topic_id, number) for number in kept]
                if share > len(kept):
                    missing[member] = share - len(kept)
            self._deal(topic_id, sorted(free), missing, picked)
        return {each.member_id: frozenset(picked[member]) for member, each in enumerate(self.claimants)}

    def _deal(
        self, topic_id: TopicId, free: list[int], missing: dict[int, int], picked: list[list[PartitionKey]]
    ) -> None:
        """One to each in turn, so that neighbours spread."""
        takers = deque(missing)
        for number in free:
            member = takers.popleft()
            picked[member].append(PartitionKey(topic_id, number))
            missing[member] -= 1
            if missing[member]:
                takers.append(member)
