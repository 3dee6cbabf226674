"""What every compatibility test stands on: one broker, the agents of the foreign clients, and topics of one's own."""

import itertools
import os
import shutil
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka.admin
import pytest
from tests.compat import setup_clients
from tests.compat.agent import Agent, Message
from tests.compat.java_classes import java_command
from tests.compat.sharer import Sharer
from tests.compat.waiting import wait_until

PYTHON_AGENTS = {"confluent": "confluent", "aiokafka": "aio", "kafka-python": "kafka_python", "kcat": "kcat"}
CLIENTS = ("confluent", "aiokafka", "kafka-python", "kcat", "kafkajs", "java-3.9", "java-4.3")
SHARE_ADMIN = "java-4.3"  # the one client that can administer share groups
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEPT = {"retention.ms": "-1"}  # of a topic whose messages are older than topics keep them

kinds: Any = confluent_kafka.admin  # its names are not typed as exported

Command = list[str]
A = TypeVar("A", bound=Agent)


def clients(*names: str) -> pytest.MarkDecorator:
    """Run a test once for each of these clients (all, when none is named)."""
    return pytest.mark.parametrize("client", names or CLIENTS)


def clients_but(*names: str) -> pytest.MarkDecorator:
    """Run a test once for each client that can do what it asks: all but these."""
    return clients(*(name for name in CLIENTS if name not in names))


def texts(prefix: str, count: int, *, partitions: int = 0) -> list[Message]:
    """Distinct messages, over the partitions in turn (or wherever the client likes)."""
    places: itertools.cycle[int | None] = itertools.cycle(list(range(partitions)) or [None])
    return [Message(f"{prefix}-{number}".encode(), partition=next(places)) for number in range(count)]


def values(messages: list[Message]) -> list[bytes | None]:
    """What they carry, in order."""
    return [message.value for message in messages]


def settle(*members: Agent, counts: tuple[int, ...]) -> None:
    """Wait until the members hold these numbers of partitions, in any order, and none twice."""

    def settled() -> bool:
        held = [place for member in members for place in member.assignment]
        return sorted(len(member.assignment) for member in members) == sorted(counts) and len(set(held)) == len(held)

    def shown() -> str:
        return ", ".join(f"{member.name} {sorted(member.assignment)} {member.trouble()[-300:]}" for member in members)

    try:
        wait_until(settled, "", limit_s=90)
    except TimeoutError:
        raise TimeoutError(f"wanted {counts}: {shown()}") from None


class Stage:
    """One broker, and whoever talks to it. Used from several threads: scenarios of different clients run at once."""

    def __init__(self, address: str, logs: Path) -> None:
        self.address = address
        self._logs = logs
        self._lock = threading.Lock()
        self._shared: dict[str, Agent] = {}
        self._share_admin: Sharer | None = None
        self._started: list[Agent] = []
        self._idle: list[Agent] = []  # starting a process costs more than most tests
        self._idle_sharers: list[Sharer] = []
        self._admin: Any = kinds.AdminClient({"bootstrap.servers": address})

    def agent(self, client: str) -> Agent:
        """The one agent of a client for calls that need no process of their own."""
        with self._lock:
            if client not in self._shared:
                self._shared[client] = self.start(client)
            return self._shared[client]

    def member(self, client: str, group: str, *topics: str, **options: Any) -> Agent:
        """A process of its own that is a member of the group."""
        member = self._idle_or_new(client, self._idle, self.start)
        member.join(group, *topics, **options)
        return member

    def _idle_or_new(self, client: str, idle: list[A], start: Callable[[str], A]) -> A:
        with self._lock:
            for member in idle:
                if member.name == client:
                    idle.remove(member)
                    return member
        member = start(client)
        member.on_leave = lambda: idle.append(member)
        return member

    def topic(self, hint: str = "t", *, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """A new topic that nobody else uses."""
        name = self.name(hint)
        wanted = kinds.NewTopic(name, partitions, 1, config=dict(config or {}))
        self._admin.create_topics([wanted])[name].result(60)
        return name

    def connect(self) -> socket.socket:
        """A plain connection to the broker."""
        host, port = self.address.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=30)

    def name(self, hint: str = "t") -> str:
        """A name that nothing has yet."""
        return f"{hint}-{uuid.uuid4().hex[:8]}"

    def start(self, client: str, command: Command | None = None) -> Agent:
        """A new process of this client; the stage ends it if nobody else does."""
        return self._start(client, command or self._command(client), Agent)

    def sharer(self, client: str) -> Sharer:
        """A process of its own that can be a member of a share group."""
        return self._idle_or_new(client, self._idle_sharers, self._start_sharer)

    def _start_sharer(self, client: str) -> Sharer:
        if client == "confluent":
            return self._start(client, [sys.executable, "-m", "tests.compat.agents.sharer"], Sharer)
        return self._start(client, [*self._command(client)[:-1], "Sharer"], Sharer)

    def share_admin(self) -> Sharer:
        """The one agent that administers share groups."""
        with self._lock:
            if self._share_admin is None:
                self._share_admin = self._start_sharer(SHARE_ADMIN)
            return self._share_admin

    def _start(self, client: str, command: Command, kind: type[A]) -> A:
        require(client)
        log = self._logs / f"{client}-{uuid.uuid4().hex[:8]}.log"
        agent = kind(client, [*command, self.address], cwd=setup_clients.ROOT, log=log)
        self._started.append(agent)
        return agent

    def _command(self, client: str) -> Command:
        if client in PYTHON_AGENTS:
            return [sys.executable, "-m", f"tests.compat.agents.{PYTHON_AGENTS[client]}"]
        if client == "kafkajs":
            source, there = setup_clients.HERE / "agents" / "kafkajs", setup_clients.KAFKAJS
            for name in ("agent.mjs", "codecs.mjs"):  # node looks for modules beside the file
                shutil.copy(source / name, there / name)
            return ["node", str(there / "agent.mjs")]
        version = client.removeprefix("java-")
        setup_clients.compile_java(version)
        return [*java_command(version), "Agent"]

    def close(self) -> None:
        """End every process that was started here."""
        self._admin = None  # or it would complain about the broker's end
        running = [agent for agent in self._started if agent.process.poll() is None]
        for agent in running:
            agent.hang_up()
        for agent in running:
            agent.close()


def require(client: str) -> None:
    """Skip where a client is missing, with its reason; in CI that is a failure."""
    reason = setup_clients.missing(client)
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
