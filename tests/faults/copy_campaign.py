"""One run of `make faults-transactions`: workers of all clients copy in transactions while brokers and workers fall."""

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.faults.campaign import CALM_S, LAWFUL, Say, stop_in_order
from tests.faults.clients.own import QUICK
from tests.faults.copies import differences
from tests.faults.copying import CLIENTS, Copy, Feed
from tests.faults.nemesis import Nemesis
from tests.faults.rig import IN_SYNC_MIN, Rig, Shape

from runnel.client.cluster import Cluster
from runnel.model.errors import RunnelError
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng
from runnel.testing.checker import Anomaly, check
from runnel.testing.history import Poll, Status

SOURCE, PARTITIONS = "orders", 4
INTERNAL = ("__consumer_offsets", "__transaction_state")
DEATH_S = (1.0, 6.0)  # between two deaths of workers


@dataclass
class CopyVerdict:
    """The figures of one run, or of several put together."""

    seeds: list[str] = field(default_factory=list)
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    deaths: int = 0  # of workers, by SIGKILL
    ends: Counter[str] = field(default_factory=Counter)  # of workers, on their own: they are started again
    sent: int = 0
    acknowledged: int = 0
    transactions: Counter[str] = field(default_factory=Counter)
    copied: Counter[str] = field(default_factory=Counter)  # messages in the target, by client
    anomalies: list[Anomaly] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.anomalies and not self.problems and self.copied.total() > 0

    def add(self, other: "CopyVerdict") -> None:
        for name in ("seeds", "anomalies", "problems"):
            getattr(self, name).extend(getattr(other, name))
        for name in ("faults", "ends", "transactions", "copied"):
            getattr(self, name).update(getattr(other, name))
        for name in ("seconds", "deaths", "sent", "acknowledged"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def table(self) -> str:
        """For people."""
        rows = [
            ("runs", f"{len(self.seeds)} ({self.seconds:.0f} s under load), seeds {', '.join(self.seeds)}"),
            ("faults injected", f"{self.faults.total()}"),
            *((f"  {kind}", f"{count}") for kind, count in sorted(self.faults.items())),
            ("workers killed", f"{self.deaths}"),
            ("workers that ended, started again", _listed(self.ends)),
            ("messages to be copied", f"{self.acknowledged} acknowledged of {self.sent} sent"),
            ("transactions", _listed(self.transactions)),
            ("messages copied", _listed(self.copied)),
            ("anomalies", _listed(Counter(anomaly.name for anomaly in self.anomalies))),
            ("other problems", f"{len(self.problems)}"),
        ]
        return "\n".join(f"  {name:<42} {value}" for name, value in rows)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items())) or "none"


def run_copies(folder: Path, seed: str, seconds: float, *, sandbox: bool, say: Say, only: str = "") -> CopyVerdict:
    """Copying under faults for so many seconds, then the last word."""
    folder.mkdir(parents=True)
    verdict = CopyVerdict(seeds=[seed])
    with ExitStack() as stack:
        rig = stack.enter_context(Rig(folder / "rig", shape=Shape(), sandbox=sandbox))
        copies = _copies(rig, folder, verdict)
        for copy in copies:
            stack.callback(copy.close)
            copy.run()
        say("the cluster is up, workers begin")
        began = time.monotonic()
        with copies[0].feed.flowing():
            time.sleep(CALM_S)
            nemesis = Nemesis(rig, SOURCE, seed, say, only)
            with _killing(copies, seed, verdict):
                nemesis.run(time.monotonic() + seconds)
            (folder / "injuries.json").write_text(json.dumps([asdict(injury) for injury in nemesis.injuries], indent=1))
            _heal(rig, copies, say, verdict)
            time.sleep(CALM_S)
        verdict.seconds = time.monotonic() - began
        verdict.problems += nemesis.problems
        verdict.faults.update(injury.kind for injury in nemesis.injuries)
        _finish(copies, say, verdict)
        ids = asyncio.run(_topic_ids(rig.bootstrap, [copy.target for copy in copies]))
        verdict.problems += stop_in_order(rig)
        verdict.problems += _compare(rig, ids)
        verdict.problems += [f"{d.name} ended with {d.code}: {d.words}" for d in rig.deaths if d.code not in LAWFUL]
    return verdict


def _copies(rig: Rig, folder: Path, verdict: CopyVerdict) -> list[Copy]:
    safe = {"min.insync.replicas": str(IN_SYNC_MIN)}
    rig.create_topic(SOURCE, PARTITIONS, 3, safe)
    feed = Feed(rig.bootstrap, SOURCE, PARTITIONS)
    copies = []
    for client in CLIENTS.values():
        if problem := client.missing():
            verdict.problems.append(f"{client.name} is missing: {problem}")
            continue
        target = f"copies-{client.name}"
        rig.create_topic(target, PARTITIONS, 3, safe)
        copies.append(Copy(rig.bootstrap, client, feed, target, PARTITIONS, folder / target))
    return copies


@contextmanager
def _killing(copies: Sequence[Copy], seed: str, verdict: CopyVerdict) -> Iterator[None]:
    """Workers die now and then, wherever they are."""
    over, rng = threading.Event(), random.Random(f"{seed}/workers")
    workers = [worker for copy in copies for worker in copy.workers]

    def kill() -> None:
        while not over.wait(rng.uniform(*DEATH_S)):
            rng.choice(workers).strike()
            verdict.deaths += 1

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _heal(rig: Rig, copies: Sequence[Copy], say: Say, verdict: CopyVerdict) -> None:
    say("faults are over, waiting for every replica to be in sync")
    try:
        rig.wait_whole([SOURCE, *INTERNAL, *(copy.target for copy in copies)])
    except RuntimeError as error:
        verdict.problems.append(str(error))


def _finish(copies: Sequence[Copy], say: Say, verdict: CopyVerdict) -> None:
    """Let the workers finish, and judge each client's work."""
    feed = copies[0].feed
    feed.flush()
    verdict.sent = len(feed.sends)
    verdict.acknowledged = sum(send.status is Status.OK for send in feed.sends)
    for copy in copies:
        say(f"reading and judging what {copy.client.name} did")
        verdict.ends.update({copy.client.name: sum(len(worker.ends) for worker in copy.workers)})
        try:
            copy.wait_caught_up()
            copy.close()
            history = copy.history()
        except (TimeoutError, RunnelError) as error:
            verdict.problems.append(str(error))
            continue
        verdict.transactions.update(one.status.value for one in history.transactions)
        written = {send.value for one in history.transactions for send in one.sends}
        polls = [poll for poll in history.polls if isinstance(poll, Poll) and poll.final]
        read = [value for poll in polls for records in poll.records.values() for _, value in records]
        verdict.copied[copy.client.name] += sum(value in written for value in read)
        verdict.anomalies += check(history)


async def _topic_ids(bootstrap: str, names: Sequence[str]) -> dict[str, str]:
    async with Cluster(bootstrap.split(","), clock=SystemClock(), rng=SystemRng(), settings=QUICK) as cluster:
        return {name: str((await cluster.topic(name)).id) for name in [SOURCE, *names]}


def _compare(rig: Rig, ids: dict[str, str]) -> list[str]:
    """Where the copies of partitions differ on the disks of the brokers."""
    problems = []
    for topic, uuid in ids.items():
        for number in range(PARTITIONS):
            places = [(str(broker), broker.data / "partitions" / f"{uuid}-{number}") for broker in rig.brokers.values()]
            problems += [f"{topic}-{number}: {difference}" for difference in differences(places)]
    return problems
