"""One turn: a verb under way, with the moment it happens in and the answers it has given so far."""

from dataclasses import dataclass, field

from runnel.groups.regex import Patterns
from runnel.groups.store import Store
from runnel.groups.timers import Timer
from runnel.groups.values import GroupConfig, TopicView
from runnel.model.ids import Millis
from runnel.model.seams import Rng
from runnel.model.step import Reply
from runnel.model.timers import Timers


@dataclass(slots=True)
class Turn:
    config: GroupConfig
    store: Store
    timers: Timers[Timer]
    rng: Rng
    patterns: Patterns
    topics: TopicView
    now_ms: Millis  # never goes back: for deadlines
    wall_ms: Millis  # what people read: for what is stored
    replies: list[Reply] = field(default_factory=list)

    def reply(self, ticket: object, result: object) -> None:
        self.replies.append(Reply(ticket, result))
