"""Every flood, as it is sent by `make bounds` and, smaller, in the tests.

`grown_mb` is the most that the memory of the broker may grow by while the flood is on, `kept_mb` what may be left of it
afterwards. Both are generous: without the bound that it tries, each flood went far beyond.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from tests.bounds import answers, bombs, connections, members, names, requests, sends
from tests.bounds.rig import Flood


class Case(NamedTuple):
    name: str
    small: Flood
    large: Flood
    grown_mb: int  # by the large one; the small one has to stay below it too
    kept_mb: int
    environment: Mapping[str, str] = {}


CASES: tuple[Case, ...] = (
    Case(
        "refused bulk sends",
        partial(sends.refused_bulk_sends, rounds=2), partial(sends.refused_bulk_sends, rounds=20),
        grown_mb=900, kept_mb=40,
    ),
    Case(
        "elements of a call",
        partial(requests.calls_of_many_values, rounds=1), partial(requests.calls_of_many_values, rounds=20),
        grown_mb=150, kept_mb=40,
    ),
    Case(
        "lists of JSON",
        partial(requests.lists_of_json, rounds=1, bytes_each=4_500_000),
        partial(requests.lists_of_json, rounds=20, bytes_each=16_000_000),
        grown_mb=200, kept_mb=40,
    ),
    Case(
        "messages over WebSockets",
        partial(requests.socket_messages, count=30), partial(requests.socket_messages, count=1_000),
        grown_mb=450, kept_mb=80,
    ),
    Case(
        "answers that are not taken",
        partial(answers.fetches_not_taken, clients=12), partial(answers.fetches_not_taken, clients=100),
        grown_mb=550, kept_mb=40,
    ),
    Case(
        "members that say much",
        partial(members.members_that_say_much, count=20, bytes_each=10_000_000),
        partial(members.members_that_say_much, count=1_000, bytes_each=1_000_000),
        grown_mb=400, kept_mb=350,
    ),
    Case(
        "topics that clients ask for",
        partial(names.topics_asked_for, requests=1, names=300),
        partial(names.topics_asked_for, requests=20, names=1_500),
        grown_mb=150, kept_mb=60,
    ),
    Case(
        "partitions of fetch sessions",
        partial(names.partitions_of_a_session, clients=5, partitions=9_000),
        partial(names.partitions_of_a_session, clients=50, partitions=200_000),
        grown_mb=400, kept_mb=60,
    ),
    Case(
        "connections that come and go",
        partial(connections.come_and_go, count=300), partial(connections.come_and_go, count=4_000),
        grown_mb=400, kept_mb=25,
    ),
    Case(
        "connections held by a byte",
        partial(connections.held_by_a_byte, count=20, seconds=60.0),
        partial(connections.held_by_a_byte, count=400, seconds=60.0),
        grown_mb=100, kept_mb=40, environment={"RUNNEL_REQUEST_ARRIVAL_MS": "3000", "RUNNEL_CONNECTIONS_MAX": "900"},
    ),
    Case(
        "what doors decompress",
        partial(bombs.read_bombs, rounds=1), partial(bombs.read_bombs, rounds=5),
        grown_mb=1_000, kept_mb=80,
    ),
)  # fmt: skip
