"""A ZooKeeper of one's own, for tests: one server or several, with ticks so short that sessions below a second work."""

from pathlib import Path
from types import TracebackType
from typing import Self

from runnel.dev.zookeeper import HOST, ZooKeeperServer, free_ports, missing, said, settings

__all__ = ["ZooKeeper", "ZooKeeperServer", "missing"]

WORDS = "4lw.commands.whitelist=srvr,wchs"  # what a server of tests may be asked; of the same lines the last one counts


class ZooKeeper:
    """One server, or an ensemble of them, until the end of the block."""

    def __init__(self, folder: Path, servers: int = 1, *, tick_ms: int = 100, power_safe: bool = False) -> None:
        ports = free_ports(3 * servers)
        peers = [f"server.{n + 1}={HOST}:{ports[3 * n + 1]}:{ports[3 * n + 2]}" for n in range(servers)]
        lines = [*settings(tick_ms), WORDS, *(peers if servers > 1 else [])]
        self.servers = [
            ZooKeeperServer(folder / str(n + 1), lines, ports[3 * n], power_safe=power_safe) for n in range(servers)
        ]
        for number in range(servers):
            (folder / str(number + 1) / "myid").write_text(str(number + 1))

    @property
    def address(self) -> str:
        """host:port,host:port"""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Start all servers, again if need be, and wait until they serve."""
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait()

    def leader(self) -> ZooKeeperServer:
        """The server that leads; the only one, if there is one."""
        return next(server for server in self.servers if server.mode() in ("leader", "standalone"))

    def watches(self) -> int:
        """How many watches all sessions have."""
        return sum(int(said(HOST, server.port, "wchs", "Total watches:") or 0) for server in self.servers)

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def pause(self) -> None:
        for server in self.servers:
            server.pause()

    def resume(self) -> None:
        for server in self.servers:
            server.resume()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
