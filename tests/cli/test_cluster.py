"""`runnel cluster`, on real brokers."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cli.calls import COMMAND, Call
from tests.conftest import cluster_broker

from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper

LIMIT_S = 60.0


@pytest.fixture
def on_trio(trio: list[BrokerProcess], call: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command on the three brokers that all tests share."""
    monkeypatch.setenv("RUNNEL_BROKER", trio[0].kafka)
    return call


@pytest.fixture
def own(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    """Three brokers for one test alone."""
    with ExitStack() as stack:
        yield [stack.enter_context(cluster_broker(zookeeper, tmp_path, number)) for number in (1, 2, 3)]


def counts(call: Call, field: str) -> list[int]:
    """What each broker leads or holds."""
    return [json.loads(line)[field] for line in call("cluster", "brokers", "--json").out.splitlines()]


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# --- looking
def test_status_of_one_broker(call: Call) -> None:
    shown = call("cluster", "status")
    assert re.match(r"Cluster \S+  controller 1  brokers 1  partitions \d+\nAll is well: 0 under-replicated", shown.out)
    assert call("cluster", "status", "--check").code == 0
    assert call("cluster", "status", "--json").json["well"] is True


def test_brokers_are_listed_with_their_share(on_trio: Call, name: str) -> None:
    on_trio("topic", "create", name, "-p", "3", "-r", "3")
    rows = [json.loads(line) for line in on_trio("cluster", "brokers", "--json").out.splitlines()]
    assert [(row["broker"], row["state"]) for row in rows] == [(1, "serving"), (2, "serving"), (3, "serving")]
    assert sum(row["controller"] for row in rows) == 1
    assert all(row["holds"] >= 3 and row["leads"] >= 1 and row["free_bytes"] > 0 for row in rows)
    assert on_trio("cluster", "brokers").rows[0] == [
        "BROKER", "ADDRESS", "RACK", "STATE", "LEADS", "HOLDS", "BEHIND", "SIZE", "FREE"
    ]  # fmt: skip


# --- refusing
def test_nothing_moves_without_a_yes(on_trio: Call, name: str) -> None:
    on_trio("topic", "create", name, "-p", "1", "-r", "1")
    [replica] = on_trio("topic", "describe", name, "--json").json["partitions"][0]["replicas"]
    other = replica % 3 + 1
    refused = on_trio("cluster", "reassign", f"{name}/0={other}", code=2)
    assert [f"{name}/0", str(replica), str(other), str(other)] in [row[:4] for row in refused.rows]
    assert "--yes" in refused.err
    planned = on_trio("cluster", "reassign", f"{name}/0={other}", "--dry-run")
    assert "Nothing was changed (--dry-run)." in planned.out
    assert on_trio("topic", "describe", name, "--json").json["partitions"][0]["replicas"] == [replica]


def test_what_does_not_exist_is_named(on_trio: Call, name: str) -> None:
    on_trio("topic", "create", name, "-p", "2", "-r", "1")
    assert f"no partition {name}/7" in on_trio("cluster", "reassign", f"{name}/7=1", "--yes", code=1).err
    assert "no topic 'nowhere'" in on_trio("cluster", "reassign", "nowhere/0=1", "--yes", code=1).err
    assert "no topic 'nowhere'" in on_trio("cluster", "balance", "nowhere", code=1).err
    assert "no topic 'nowhere'" in on_trio("cluster", "elect", "nowhere", code=1).err
    assert "there is no broker 9" in on_trio("cluster", "drain", "9", code=1).err
    nowhere = on_trio("cluster", "reassign", f"{name}/0=1,9", "--dry-run", code=1)
    assert f"{name}/0 can't lie on 9: the cluster has brokers 1, 2, 3." in nowhere.err
    assert "each once" in on_trio("cluster", "reassign", f"{name}/0=1,1", "--dry-run", code=2).err
    assert "3 brokers serve" in on_trio("cluster", "reassign", name, "--replicas", "4", code=1).err


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ([], "nothing to move"),
        (["t/0"], "TOPIC/N=BROKER"),
        (["t/0=a"], "TOPIC/N=BROKER"),
        (["t=1"], "TOPIC/N=BROKER"),
        (["--replicas", "2"], "nothing to move"),
        (["--watch", "--cancel"], "exclude each other"),
    ],
)
def test_wrong_usage_is_explained(call: Call, arguments: list[str], advice: str) -> None:
    assert advice in call("cluster", "reassign", *arguments, code=2).err


def test_a_plan_in_a_file(on_trio: Call, name: str, tmp_path: Path) -> None:
    on_trio("topic", "create", name, "-p", "1", "-r", "3")
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    assert "can't be read as a plan" in on_trio("cluster", "reassign", "--file", str(plan), code=2).err
    before = on_trio("topic", "describe", name, "--json").json["partitions"][0]["replicas"]
    order = [*before[1:], before[0]]
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": name, "partition": 0, "replicas": order}]}))
    done = on_trio("cluster", "reassign", "--file", str(plan), "--yes")
    assert "0 replicas to copy, 0 B; another preferred leader for 1 partition" in done.out
    after = on_trio("topic", "describe", name, "--json").json["partitions"][0]
    assert (after["replicas"], after["leader"]) == (order, order[0])
    assert "lie there already" in on_trio("cluster", "reassign", "--file", str(plan), "--yes").out


# --- moving
def test_more_copies_then_watched_and_cancelled(on_trio: Call, name: str, trio: list[BrokerProcess]) -> None:
    on_trio("topic", "create", name, "-p", "1", "-r", "1")
    on_trio("bench", "produce", name, "-n", "4000")
    begun = on_trio("cluster", "reassign", name, "--replicas", "2", "--throttle", "1k", "--yes", "--detach")
    assert "1 partition on the way" in begun.out
    assert "1 partition moving" in on_trio("cluster", "status").out
    eventually(lambda: "Copying is throttled on brokers" in on_trio("cluster", "status").out)
    watching = subprocess.Popen(
        [*COMMAND, "cluster", "reassign", "--watch", "-b", trio[0].kafka], stderr=subprocess.PIPE, text=True
    )
    assert watching.stderr is not None
    assert "0 of 1 partition done" in watching.stderr.readline()
    watching.send_signal(signal.SIGINT)
    _, rest = watching.communicate(timeout=LIMIT_S)
    assert "The moves go on" in rest
    assert watching.returncode == 130
    assert [f"{name}/0"] in [row[:1] for row in on_trio("cluster", "reassign", "--cancel", "-n").rows]
    assert "1 move taken back" in on_trio("cluster", "reassign", "--cancel", name, "--yes").out
    assert "moving" not in on_trio("cluster", "status").out
    eventually(lambda: "throttled" not in on_trio("cluster", "status").out)
    assert "all replicas are where" in on_trio("cluster", "reassign", name, "--replicas", "2", "--yes").out
    assert len(on_trio("topic", "describe", name, "--json").json["partitions"][0]["in_sync"]) == 2


def test_a_move_that_somebody_takes_back_is_not_called_done(
    on_trio: Call, name: str, trio: list[BrokerProcess]
) -> None:
    on_trio("topic", "create", name, "-p", "1", "-r", "1")
    on_trio("bench", "produce", name, "-n", "4000")
    command = [*COMMAND, "cluster", "reassign", name, "--replicas", "2", "--throttle", "1k", "--yes"]
    moving = subprocess.Popen([*command, "-b", trio[0].kafka], stderr=subprocess.PIPE, text=True)
    assert moving.stderr is not None
    assert "0 of 1 partition done" in moving.stderr.readline()
    on_trio("cluster", "reassign", "--cancel", f"{name}/0", "--yes")
    _, rest = moving.communicate(timeout=LIMIT_S)
    assert f"1 move taken back or replaced meanwhile: {name}/0" in rest
    assert moving.returncode == 1


def test_any_replica_leads_if_what_it_lacks_is_given_up(
    own: list[BrokerProcess], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = own
    monkeypatch.setenv("RUNNEL_BROKER", first.kafka)
    call("topic", "create", "t", "-p", "1", "-r", "1")
    call("cluster", "reassign", "t/0=2,3", "--yes")
    third.kill()
    eventually(lambda: "t/0" in call("cluster", "status", "--json").json["under_replicated"])
    call("produce", "t", "-m", "only on the second")
    second.kill()
    third.start()
    eventually(lambda: call("cluster", "status", "--json").json["offline"] == ["t/0"])
    assert "Every partition is led" not in call("cluster", "elect", "--yes", code=1).err
    asked = call("cluster", "elect", "--unclean", code=2)
    assert ["t/0", "none", "any"] in [row[:3] for row in asked.rows]
    assert "lost for ever" in asked.err
    assert "elected leaders of 1 partition" in call("cluster", "elect", "--unclean", "--yes").out
    eventually(lambda: call("topic", "describe", "t", "--json").json["partitions"][0]["leader"] == 3)
    assert call("consume", "t", "-e").out == ""


def test_a_cluster_is_drained_balanced_and_mended(
    own: list[BrokerProcess], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNEL_BROKER", ",".join(broker.kafka for broker in own))
    call("topic", "create", "t", "-p", "6", "-r", "2", "-c", "min.insync.replicas=2")
    call("bench", "produce", "t", "-n", "3072")
    drained = call("cluster", "drain", "3", "--yes", "--throttle", "10m").out
    assert "it can be stopped (as long as it runs, new topics may get replicas on it)" in drained
    eventually(lambda: counts(call, "holds") == [6, 6, 0])
    assert "holds nothing" in call("cluster", "drain", "3", "--yes").out
    moved = [json.loads(line) for line in call("cluster", "balance", "--yes", "--json").out.splitlines()]
    assert [len(moved[0]["moves"]), moved[1]] == [4, {"moved": 4, "finished": True}]
    eventually(lambda: counts(call, "holds") == [4, 4, 4])
    eventually(lambda: counts(call, "leads") == [2, 2, 2])
    assert "nothing has to move" in call("cluster", "balance").out
    own[2].kill()
    eventually(lambda: counts(call, "leads")[2] == 0)
    lack = "Not all is well: 4 under-replicated, 4 below min.insync.replicas"
    eventually(lambda: lack in call("cluster", "status", "--check", code=1).out)
    assert re.search(r"^ +3 .* gone ", call("cluster", "status", "--check", code=1).out, re.MULTILINE)
    assert "3, once it is in sync" in call("cluster", "elect", "-n").out
    own[2].start()
    eventually(lambda: counts(call, "behind") == [0, 0, 0])
    call("cluster", "elect", "--yes")
    eventually(lambda: counts(call, "leads") == [2, 2, 2])
    assert "led by its preferred replica" in call("cluster", "elect").err
    assert len(call("consume", "t", "-e", "-f", "%o\n").out.splitlines()) == 3072


def test_who_is_gone_for_good_is_unregistered(
    own: list[BrokerProcess], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNEL_BROKER", ",".join(broker.kafka for broker in own))

    def states() -> list[str]:
        return [json.loads(line)["state"] for line in call("cluster", "brokers", "--json").out.splitlines()]

    assert "broker 3 is alive" in call("cluster", "unregister", "3", "--yes", code=1).err
    own[2].stop()
    eventually(lambda: states() == ["serving", "serving", "gone"])
    call("topic", "create", "t", "-p", "3", "-r", "3")
    assert "3 under-replicated" in call("cluster", "status", "--check", code=1).out
    assert "broker 3 holds replicas of 1 topics" in call("cluster", "unregister", "3", "--yes", code=1).err
    call("topic", "delete", "t", "--yes")
    eventually(lambda: "t" not in call("topic", "ls").out.split())
    assert "not registered any more" in call("cluster", "unregister", "3", "--yes").out
    assert states() == ["serving", "serving"]
    assert "2 brokers serve" in call("topic", "create", "u", "-r", "3", code=1).err
    own[2].start()
    eventually(lambda: states() == ["serving"] * 3)
