"""What a checker of histories is tested with: a history in which all is well, and ways to change it.

Rule 1: a change that plants an anomaly says all that has to be found in the history then, and it is found alone.
Rule 2: a change that is legal leaves a history in which nothing is found.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from runnel.testing.history import History

Change = Callable[[History], None]


@dataclass(frozen=True, slots=True)
class Subject:
    """One good history, made anew for each change."""

    good: Callable[[], History]
    planted: list[tuple[Change, set[str]]] = field(default_factory=list)
    permitted: list[Change] = field(default_factory=list)

    def plants(self, *anomalies: str) -> Callable[[Change], Change]:
        """What this change plants; the anomaly of its own name, unless others are named."""

        def note(change: Change) -> Change:
            self.planted.append((change, set(anomalies) or {change.__name__.replace("_", "-")}))
            return change

        return note

    def permits(self, change: Change) -> Change:
        self.permitted.append(change)
        return change
