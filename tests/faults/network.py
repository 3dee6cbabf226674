"""Hosts on one switch, and what can go wrong between them. Needs the sandbox.

A packet is dropped where it arrives, so that each direction of a link can be cut alone. Every change sets the whole
filter of a host anew from what is wrong now: faults may overlap, and end in any order.
"""

import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

NET = "198.18.0"  # set aside for tests between hosts (RFC 2544); nothing leads out of the sandbox
OUTSIDE = "clients"  # where the clients are: the sandbox itself
OUTSIDE_NUMBER = 254
TABLE = "inet faults"


def run(*command: str, given: str | None = None) -> None:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


class Network:
    """The hosts named, each with an address of its own."""

    def __init__(self, names: Iterable[str]) -> None:
        self.addresses = {name: f"{NET}.{number}" for number, name in enumerate(names, 1)}
        self.addresses[OUTSIDE] = f"{NET}.{OUTSIDE_NUMBER}"
        self._cuts: Counter[tuple[str, str]] = Counter()  # (from, to)
        self._loss: Counter[tuple[str, int]] = Counter()  # (host, per cent of what arrives)
        self._lock = threading.Lock()

    @property
    def hosts(self) -> list[str]:
        return [name for name in self.addresses if name != OUTSIDE]

    def build(self) -> None:
        run("mount", "-t", "tmpfs", "none", "/run")  # the names of the hosts are files there
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "switch", "type", "bridge")
        run("ip", "addr", "add", f"{self.addresses[OUTSIDE]}/24", "dev", "switch")
        run("ip", "link", "set", "switch", "up")
        for name in self.hosts:
            self._add(name)
        for name in self.addresses:
            self._filter(name)

    def remove(self) -> None:
        """Take it down again, for another one in the same sandbox."""
        for name in self.hosts:
            run("ip", "link", "delete", name)  # at once: a namespace goes only when its last socket is gone
            run("ip", "netns", "delete", name)
        run("ip", "link", "delete", "switch")

    def _add(self, name: str) -> None:
        run("ip", "netns", "add", name)
        run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", name, "master", "switch", "up")
        run("ip", "-n", name, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")

    def on(self, name: str) -> list[str]:
        """What to put before a command so that it runs on that host."""
        return [] if name == OUTSIDE else ["nsenter", f"--net=/run/netns/{name}"]

    def _filter(self, name: str) -> None:
        run(*self.on(name), "nft", "-f", "-", given=self._rules(name))

    def _rules(self, name: str) -> str:
        drops = [f"ip saddr {self.addresses[a]} drop" for (a, b), count in self._cuts.items() if b == name and count]
        drops += [
            f"ip saddr {NET}.0/24 numgen random mod 100 < {share} drop"
            for (host, share), count in self._loss.items()
            if host == name and count
        ]
        chain = ["type filter hook input priority 0", *drops]
        return (
            f"table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\nchain input {{\n" + "\n".join(chain) + "\n}\n}\n"
        )

    # --- what goes wrong, until the end of the block
    @contextmanager
    def cut(self, pairs: Iterable[tuple[str, str]]) -> Iterator[None]:
        """Nothing gets from the first of each pair to the second."""
        cuts = list(pairs)
        self._change(self._cuts, cuts, 1, {b for _, b in cuts})
        try:
            yield
        finally:
            self._change(self._cuts, cuts, -1, {b for _, b in cuts})

    @contextmanager
    def losing(self, host: str, percent: int) -> Iterator[None]:
        """So much of what arrives at a host is lost."""
        self._change(self._loss, [(host, percent)], 1, {host})
        try:
            yield
        finally:
            self._change(self._loss, [(host, percent)], -1, {host})

    def _change(self, wrong: "Counter[T]", what: list[T], by: int, hosts: set[str]) -> None:
        with self._lock:
            for each in what:
                wrong[each] += by
            for host in sorted(hosts):
                self._filter(host)

    @contextmanager
    def slow(self, host: str, kilobits: int) -> Iterator[None]:
        """What a host sends leaves it slowly; one such fault at a time for each host."""
        run(*self.on(host), "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf",
            "rate", f"{kilobits}kbit", "burst", "16kb", "latency", "400ms")  # fmt: skip
        try:
            yield
        finally:
            run(*self.on(host), "tc", "qdisc", "delete", "dev", "eth0", "root")


def both_ways(some: Iterable[str], others: Iterable[str]) -> list[tuple[str, str]]:
    """All links between two sets of hosts, in both directions."""
    pairs = [(a, b) for a in some for b in others if a != b]
    return pairs + [(b, a) for a, b in pairs]
