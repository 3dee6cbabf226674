"""Chooses faults by a seed and does them: a random few at a time, a quarter of the time none.

Half of them hit a cluster that has recovered from the last ones, the others one that may not have.
After a leader fell alone, nothing else happens for as long as a failover may take, so that it can be measured.
"""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from tests.faults.injury import Kind, Scene, possible
from tests.faults.rig import Rig

CALM = 0.25
TOGETHER = (1, 1, 1, 2, 2, 3)
CALM_S = (1.0, 4.0)
BETWEEN_S = (0.3, 2.5)
RECOVERED = 0.5
RECOVERY_S = 8.0
FAILOVER_S = 3.0  # beyond the session: longer than it may take


@dataclass
class Injury:
    """One fault that was done."""

    kind: str
    what: str
    begun: float
    alone: bool  # no other fault at the time, and every replica in sync before
    led: list[int] = field(default_factory=list)  # partitions that the felled brokers led, and that go on without them
    ended: float = float("inf")


class Nemesis:
    """Does faults until its time is up; leaves none behind."""

    def __init__(self, rig: Rig, topic: str, seed: str, say: Callable[[str], None], only: str = "") -> None:
        self.rig, self.topic = rig, topic
        self.injuries: list[Injury] = []
        self.problems: list[str] = []  # what could not be done, and should
        self._rng = random.Random(seed)
        self._say = say
        kinds, self.impossible = possible(rig)
        self._kinds = [kind for kind in kinds if only in kind.name]

    def run(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            if self._rng.random() < CALM:
                time.sleep(min(left, self._rng.uniform(*CALM_S)))
            else:
                self._hurt(self._choose())
                time.sleep(self._rng.uniform(*BETWEEN_S))

    def _choose(self) -> list[Kind]:
        wanted, chosen = self._rng.choice(TOGETHER), list[Kind]()
        while len(chosen) < min(wanted, len(self._kinds)):
            kind = self._rng.choices(self._kinds, [kind.weight for kind in self._kinds])[0]
            if kind not in chosen:
                chosen.append(kind)
        return chosen

    def _hurt(self, kinds: list[Kind]) -> None:
        if self._rng.random() < RECOVERED:
            with suppress(RuntimeError):
                self.rig.wait_whole([self.topic], RECOVERY_S)
        view = self.rig.view(self.topic)
        alone = len(kinds) == 1 and view is not None and view.whole
        lasts_s = max(self._rng.uniform(*kind.lasts) for kind in kinds) * self.rig.session_s
        scene, done = Scene(self.rig, self._rng, self.topic), list[Injury]()
        with ExitStack() as stack:
            for kind in kinds:
                begun = time.monotonic()
                try:
                    hit = stack.enter_context(kind.begin(scene))
                except RuntimeError as error:
                    self.problems.append(f"{kind.name}: {error}")
                    continue
                led = [number for broker in hit.felled for number in (view.outliving(broker) if view else [])]
                if not hit.done:
                    self._say(f"{kind.name} ({hit.what}): not done")
                    continue
                done.append(Injury(kind.name, hit.what, begun, alone, led))
                self.injuries.append(done[-1])
                self._say(f"{kind.name} ({hit.what})")
            time.sleep(lasts_s)
        for injury in done:
            injury.ended = time.monotonic()
        if alone and any(injury.led for injury in done):
            time.sleep(max(0.0, done[0].begun + self.rig.session_s + FAILOVER_S - time.monotonic()))
