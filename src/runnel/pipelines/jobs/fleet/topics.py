"""The topics of the fleet: which they are, and how they keep what is written.

cars           reports as they come; as the cluster keeps topics
fleet.cars     the newest of each car; compacted
fleet.alerts   cars that went silent and came back; a week
fleet.heat     each cell and minute, and the whole city's; compacted, and removed after a day
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from runnel.client.admin import Admin, NewTopic
from runnel.client.connecting import connect
from runnel.model.errors import TopicAlreadyExists

HOUR_MS = 3_600_000
CARS_PARTITIONS = 6


@dataclass(frozen=True, slots=True)
class Topics:
    """Where reports come from, and what results begin with."""

    source: str = "cars"
    results: str = "fleet"

    @property
    def cars(self) -> str:
        return f"{self.results}.cars"

    @property
    def alerts(self) -> str:
        return f"{self.results}.alerts"

    @property
    def heat(self) -> str:
        return f"{self.results}.heat"

    def new(self) -> list[NewTopic]:
        """All of them, as they are made where they are not there."""
        day = str(24 * HOUR_MS)
        return [
            NewTopic(self.source, CARS_PARTITIONS),
            NewTopic(self.cars, 3, config={"cleanup.policy": "compact", "segment.ms": str(HOUR_MS)}),
            NewTopic(self.alerts, 1, config={"retention.ms": str(7 * 24 * HOUR_MS)}),
            NewTopic(self.heat, 3, config={"cleanup.policy": "compact,delete", "retention.ms": day}),
        ]


async def make(admin: Admin, topics: list[NewTopic]) -> None:
    """Create what is not there yet."""
    for topic in topics:
        with suppress(TopicAlreadyExists):
            await admin.create_topics([topic])


def make_all(brokers: str, topics: Topics) -> None:
    """The same for all topics of the fleet, from where no loop runs."""

    async def making() -> None:
        async with connect(*brokers.split(","), name="runnel-fleet") as runnel:
            await make(runnel.admin, topics.new())

    asyncio.run(making())
