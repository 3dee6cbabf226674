"""What `runnel dev` shows of a cluster."""

import subprocess
from pathlib import Path

import pytest
from tests.client.views import view

from runnel.cli.dev_view import Screen
from runnel.dev.children import BrokerChild, State
from runnel.dev.cluster import DevCluster, Plan
from runnel.dev.events import Sight


class Shown:
    """A screen for two brokers, which were never started; what becomes of them is said."""

    def __init__(self, folder: Path) -> None:
        self.screen = Screen()
        self.screen.cluster = DevCluster(Plan(2, folder, 0), self.screen.tell)
        self.brokers = [BrokerChild(n, folder, f"127.0.0.1:{9000 + n}", []) for n in (1, 2)]
        self.screen.cluster.brokers += self.brokers

    def states(self) -> dict[str, str]:
        return {row[1]: row[4] for row in self.screen.rows()}


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    return Shown(tmp_path)


def see(shown: Shown, *brokers: int) -> None:
    shown.screen.see(Sight.of(view(brokers, {"a": [(1, [1, 2], [1])]})))


def test_rows_tell_what_each_leads_holds_and_lacks(shown: Shown) -> None:
    for broker in shown.brokers:
        broker.state = State.SERVING
    see(shown, 1, 2)
    assert shown.screen.rows() == [
        ("*", "1", "-", "127.0.0.1:9001", "serving", "1", "1", "0"),
        ("", "2", "-", "127.0.0.1:9002", "serving", "0", "1", "1"),
    ]
    assert shown.screen.summary() == "1 partition, 1 under-replicated"


def test_a_process_and_the_cluster_may_disagree(shown: Shown) -> None:
    first, second = shown.brokers
    first.state, second.state = State.SERVING, State.ENDED
    see(shown, 1, 2)
    assert shown.states() == {"1": "serving", "2": "ended, not missed yet"}
    see(shown, 1)
    assert shown.states() == {"1": "serving", "2": "ended"}
    see(shown, 2, 7)
    assert shown.states() == {"1": "out of the cluster", "2": "serving, not ours", "7": "serving, not ours"}


def test_a_broker_that_was_started_again_is_told_as_such(shown: Shown) -> None:
    first, second = shown.brokers
    first.state, second.state = State.SERVING, State.ENDED
    with subprocess.Popen(["sleep", "60"]) as again:
        second.process = subprocess.Popen(["true"])
        second.process.wait()
        second.folder.mkdir()
        (second.folder / "lock").write_text(f"{second.process.pid}\n")
        see(shown, 1, 2)
        assert shown.states()["2"] == "ended, not missed yet"
        (second.folder / "lock").write_text(f"{again.pid}\n")
        assert shown.states()["2"] == "serving, not ours"
        see(shown, 1)
        assert shown.states()["2"] == "starting, not ours"
        again.kill()
    assert shown.states()["2"] == "ended"


def test_silence_is_told_once(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        shown.screen.see(None)
    assert capsys.readouterr().out.count("no broker answers") == 1
