"""`runnel queue`, on a real broker."""

import json
from typing import Any

import pytest
from tests.cli.calls import Call, process

from runnel.cli.queue_shift import _print_plan
from runnel.cli.queue_show import _print_described
from runnel.model.calls import Moved, QueueDescription, Shifted
from runnel.testing.process import BrokerProcess


def rows(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


# --- definitions
def test_create_list_describe_delete(call: Call, name: str) -> None:
    assert call("queue", "create", name, "--lease", "1m").out == f"created queue {name} on a new topic {name}\n"
    assert [name, name, "0", "0", "0", "0"] in call("queue", "ls").rows
    assert name in call("queue", "ls", "-q", name).out.splitlines()
    out = call("queue", "describe", name).out
    assert out.startswith(f"Queue {name}  topic {name}  backlog 0")
    assert ["lease.ms", "60000"] in call("queue", "describe", name).rows
    assert ["attempts.max", "5"] in call("queue", "describe", name, "--all").rows
    refused = call("queue", "delete", name, code=2)
    assert f"This deletes queue {name} for ever." in refused.err
    assert call("queue", "delete", name, "--yes").out == f"deleted queue {name}\n"
    assert name not in call("queue", "ls", "-q").out.splitlines()
    assert name in call("topic", "ls").out
    assert "does not exist" in call("queue", "describe", name, code=1).err


def test_creating_twice_and_trying_it_out(call: Call, name: str) -> None:
    assert call("queue", "create", name, "-n").out == f"would create queue {name} on a new topic {name}\n"
    assert "does not exist" in call("queue", "describe", name, code=1).err
    made = call("queue", "create", name, "--json").json
    assert made == {"queue": name, "created": True, "topic": name, "created_topic": True}
    assert "exists already" in call("queue", "create", name, code=1).err
    assert call("queue", "create", name, "--if-not-exists").out == f"queue {name} exists already\n"


def test_all_options_become_settings(call: Call, name: str) -> None:
    call("topic", "create", name, "-p", "3")
    call(
        "queue", "create", f"{name}.q", "-t", name, "--lanes", "3", "--lease", "1m30s", "--attempts", "0", "--backoff",
        "250ms", "--order", "key", "--filter", "body.amount > 5", "--dead-letters", "", "-c", "max.length=7",
    )  # fmt: skip
    described = call("queue", "describe", f"{name}.q", "--json").json
    own = {key: value["value"] for key, value in described["settings"].items() if not value["default"]}
    assert own == {
        "topic": name, "lanes": "3", "lease.ms": "90000", "attempts.max": "0", "retry.backoff.ms": "250",
        "order": "key", "filter": "body.amount > 5", "dead.letter.topic": "", "max.length": "7",
    }  # fmt: skip
    assert [part["partition"] for part in described["partitions"]] == [2, 1, 0]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--lease", "soon"], 2, "no span of time"),
        (["-c", "lease.ms=soon"], 1, "lease.ms"),
        (["-c", "colour=red"], 1, "colour"),
        (["--filter", "a ="], 1, "character 4"),
    ],
)
def test_what_can_not_be_created_is_explained(
    call: Call, name: str, arguments: list[str], code: int, text: str
) -> None:
    assert text in call("queue", "create", name, *arguments, code=code).err


def test_alter_shows_before_and_after(call: Call, name: str) -> None:
    call("queue", "create", name, "--lease", "5s")
    assert ["lease.ms", "5000", "6000"] in call("queue", "alter", name, "-c", "lease.ms=6000").rows
    assert "Nothing was changed" in call("queue", "alter", name, "-c", "lease.ms=7000", "--dry-run").out
    reset = call("queue", "alter", name, "--reset", "share.record.lock.duration.ms", "--json").json
    assert reset["settings"] == [{"setting": "lease.ms", "before": "6000", "after": "30000"}]
    assert "nothing to change" in call("queue", "alter", name, code=2).err
    assert "does not exist" in call("queue", "alter", f"{name}.x", "-c", "lease.ms=1", code=1).err
    assert "unknown queue setting 'leese.ms'" in call("queue", "alter", name, "--reset", "leese.ms", code=1).err


def test_topics_are_deleted_with_their_queue_when_asked(call: Call, name: str) -> None:
    call("queue", "create", name)
    would = call("queue", "delete", name, "--topics", "--dry-run").out
    assert would == f"would delete queue {name} and {name}\n"
    assert f"queue {name} with {name}" in call("queue", "delete", name, "--topics", code=2).err
    gone = call("queue", "delete", name, "--topics", "-y", "--json").json
    assert gone == {"queue": name, "deleted": True, "topics": [name]}
    assert "does not exist" in call("topic", "describe", name, code=1).err


# --- messages
def test_what_is_sent_is_received_once(call: Call, name: str) -> None:
    call("queue", "create", name)
    assert call("queue", "send", name, "-m", "one", "-m", "two", "-v").out == f"{name}/0@0\n{name}/0@1\n"
    assert call("queue", "receive", name, "-c", "1").out == "one\n"
    assert call("queue", "receive", name, "-e").out == "two\n"
    assert call("queue", "receive", name, "-w", "1ms").out == ""
    described = call("queue", "describe", name, "--json").json
    assert (described["backlog"], described["partitions"][0]["accepted"]) == (0, 2)


def test_keys_headers_and_time_to_live_travel(call: Call, name: str) -> None:
    call("queue", "create", name)
    call("queue", "send", name, "-m", "v", "-k", "k", "-H", "a=b", "--ttl", "1h")
    [got] = rows(call("queue", "receive", name, "-c", "1", "--json").out)
    assert (got["key"], got["value"], got["attempt"], got["offset"]) == ("k", "v", 1, 0)
    assert {"key": "a", "value": "b"} in got["headers"]
    assert {"key": "runnel-ttl-ms", "value": "3600000"} in got["headers"]
    assert got["receipt"]


def test_lines_of_stdin_are_messages(call: Call, broker: BrokerProcess, name: str) -> None:
    call("queue", "create", name)
    text = b"".join(b"k%d:%d\n" % (number, number) for number in range(1_200))
    done = process(broker.kafka, "queue", "send", name, "-K:", stdin=text)
    assert done.stderr.decode() == f"sent 1,200 messages to {name}\n"
    got = process(broker.kafka, "queue", "receive", name, "-e", "-K:", "--then", "accept").stdout
    assert sorted(got.splitlines()) == sorted(text.splitlines())


def test_a_message_of_a_name_is_kept_once(call: Call, name: str) -> None:
    call("queue", "create", name)
    assert call("queue", "send", name, "-m", "a", "--id", "x", "-v").out == f"{name}/0@0\n"
    assert call("queue", "send", name, "-m", "a", "--id", "x", "-v").out == f"{name}/0@0 (there already)\n"
    assert "--id names one message" in call("queue", "send", name, "-m", "a", "-m", "b", "--id", "x", code=2).err


def test_the_higher_lane_goes_first(call: Call, name: str) -> None:
    call("queue", "create", name, "--lanes", "3")
    for number in ("0", "2", "1"):
        call("queue", "send", name, "-m", number, "--priority", number)
    assert [call("queue", "receive", name, "-c", "1").out for _ in range(3)] == ["2\n", "1\n", "0\n"]
    assert "lanes 0 to 2" in call("queue", "send", name, "-m", "x", "--priority", "7", code=1).err


def test_a_message_that_is_released_comes_again(call: Call, name: str) -> None:
    call("queue", "create", name)
    call("queue", "send", name, "-m", "a")
    call("queue", "receive", name, "-c", "1", "--then", "release", "--delay", "0s")
    [again] = rows(call("queue", "receive", name, "-c", "1", "--json").out)
    assert again["attempt"] == 2


def test_a_lease_that_is_kept_hides_its_message(call: Call, name: str) -> None:
    call("queue", "create", name)
    call("queue", "send", name, "-m", "a")
    [leased] = rows(call("queue", "receive", name, "-c", "1", "--then", "nothing", "--json").out)
    assert leased["leased_until_ms"] > leased["timestamp_ms"]
    assert call("queue", "receive", name, "-e").out == ""
    assert [f"{name}/0@0", "leased", "1", "-", "a"] in call("queue", "peek", name).rows


def test_leases_are_settled_and_extended_by_their_receipts(call: Call, name: str) -> None:
    call("queue", "create", name)
    call("queue", "send", name, "-m", "a", "-m", "b", "-m", "c")
    leased = rows(call("queue", "receive", name, "-c", "3", "--then", "nothing", "--json").out)
    one, two, three = (row["receipt"] for row in leased)
    assert call("queue", "extend", name, one, two, "--lease", "10m").out == "extended 2 messages\n"
    assert call("queue", "settle", name, one).out == "accepted 1 message\n"
    assert call("queue", "settle", name, one).out == "accepted 1 message\n"  # said again, it is still so
    call("queue", "settle", name, two, "--then", "release", "--delay", "0s")
    rejected = call("queue", "settle", name, three, "--then", "reject", "--reason", "odd", "--json").json
    assert rejected == {"receipt": three, "rejected": True, "failure": None}
    assert call("queue", "receive", name, "-c", "1").out == "b\n"
    lost = call("queue", "settle", name, two, "--then", "release", code=1)
    assert "1 of 1 could not be released" in lost.err
    assert "goes with --then release" in call("queue", "settle", name, one, "--delay", "1s", code=2).err


def test_a_filter_leaves_the_rest(call: Call, name: str) -> None:
    call("queue", "create", name)
    call("queue", "send", name, "-m", '{"n":1}', "-m", '{"n":2}')
    assert call("queue", "peek", name, "--filter", "body.n = 2", "-f", "%s\\n").out == '{"n":2}\n'
    assert call("queue", "receive", name, "-c", "1", "--filter", "body.n = 2").out == '{"n":2}\n'
    assert call("queue", "receive", name, "-e").out == '{"n":1}\n'


def test_the_last_release_says_why_a_message_died(call: Call, name: str) -> None:
    call("queue", "create", name, "--attempts", "1")
    call("queue", "send", name, "-m", "one", "-m", "two")
    call("queue", "receive", name, "-c", "1", "--then", "release", "--reason", "the printer burns")
    [leased] = rows(call("queue", "receive", name, "-c", "1", "--then", "nothing", "--json").out)
    call("queue", "settle", name, leased["receipt"], "--then", "release", "--reason", "it burns on")
    letters: list[Any] = []
    while len(letters) < 2:
        letters = rows(call("dlq", "ls", name, "--json").out)
    assert [letter["reason"] for letter in letters] == ["the printer burns", "it burns on"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["receive", "q", "--then", "accept", "--delay", "1s"],
        ["receive", "q", "--then", "accept", "--reason", "x"],
        ["receive", "q", "--reason", "x"],
        ["receive", "q", "--json", "-K", ":"],
        ["peek", "q", "-o", "5"],
        ["send", "q", "-m", "x", "--delay", "1s", "--deliver-at", "2030-01-01"],
        ["rewind", "q", "--to", "5"],
        ["rewind", "q", "--to", "stored"],
        ["rewind", "q", "--to", "-5"],
    ],
)
def test_what_does_not_go_together_is_wrong_usage(call: Call, arguments: list[str]) -> None:
    call("queue", *arguments, code=2)


def test_what_could_not_be_asked_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    _print_described(QueueDescription("q", "t", True, [], [], scheduled=-1, dead_letters=-1), all_settings=False)
    shown = capsys.readouterr()
    assert "dead not known" in shown.out
    assert "The schedule could not be asked" in shown.err
    assert "-1" not in shown.out + shown.err
    shifted = Shifted([Moved("t", 0, 0, 0)], scheduled=-1)
    _print_plan(shifted)
    assert "the schedule could not be asked" in capsys.readouterr().err


def test_there_is_no_question_where_nothing_is_lost(call: Call, name: str) -> None:
    call("queue", "create", name, "-p", "1")
    assert "purged queue" in call("queue", "purge", name).out


def test_a_queue_that_is_not_there_is_named(call: Call, name: str) -> None:
    for command in (["send", name, "-m", "x"], ["receive", name, "-e"], ["peek", name], ["purge", name, "-y"]):
        assert f"{name!r} does not exist" in call("queue", *command, code=1).err


def test_every_broker_of_a_cluster_serves_every_queue(trio: list[BrokerProcess], name: str) -> None:
    def on(number: int, *arguments: str) -> str:
        return process(trio[number].kafka, *arguments).stdout.decode()

    on(0, "queue", "create", name, "-p", "6", "-r", "3")
    values = [word for number in range(12) for word in ("-m", str(number), "-k", str(number))]
    on(1, "queue", "send", name, *values)
    assert f"backlog {12}" in on(2, "queue", "describe", name)
    receive = ("queue", "receive", name, "--then", "accept")
    got = [line for number in range(3) for line in on(number, *receive, "-c", "4").split()]
    assert sorted(map(int, got)) == list(range(12))
    assert "backlog 0" in on(0, "queue", "describe", name)
    on(2, "queue", "delete", name, "--topics", "-y")
    assert name not in on(1, "queue", "ls", "-q").split()


def test_each_process_is_a_consumer_of_its_own_unless_it_is_named(call: Call, name: str) -> None:
    call("queue", "create", name, "-p", "1", "-c", "consumers=single")
    call("queue", "send", name, "-m", "a", "-m", "b", "-m", "c")
    assert call("queue", "receive", name, "-c", "1", "-w", "30s").out == "a\n"
    assert call("queue", "receive", name, "-e").out == ""
    call("queue", "create", f"{name}.named", "-t", name, "-c", "consumers=single")
    assert call("queue", "receive", f"{name}.named", "--consumer", "mill", "-c", "1", "-w", "30s").out == "a\n"
    assert call("queue", "receive", f"{name}.named", "--consumer", "mill", "-c", "1", "-w", "30s").out == "b\n"


# --- moving
def test_a_purge_counts_what_waits_in_the_schedule(call: Call, name: str) -> None:
    call("queue", "create", name)
    call("queue", "send", name, "-m", "a")
    call("queue", "receive", name, "-c", "1", "--then", "release", "--delay", "1h")
    while call("queue", "purge", name, "--dry-run", "--json").json["scheduled"] != 1:  # it is on its way there
        pass
    assert "This gives up 1 message of" in call("queue", "purge", name, code=2).err
    assert "in 0 partitions, and 1 that waited in the schedule" in call("queue", "purge", name, "-y").out


def test_purge_and_rewind_show_their_plan_and_ask(call: Call, name: str) -> None:
    call("queue", "create", name)
    call("queue", "send", name, "-m", "a", "-m", "b")
    assert [f"{name}/0", "0", "2", "+2"] in call("queue", "purge", name, "--dry-run").rows
    assert "This gives up 2 messages" in call("queue", "purge", name, code=2).err
    assert call("queue", "purge", name, "-y").out.endswith(f"purged queue {name} in 1 partition\n")
    assert call("queue", "receive", name, "-e").out == ""
    assert "leases that are out are void" in call("queue", "rewind", name, "--to", "start", code=2).err
    again = call("queue", "rewind", name, "-p", "0", "--to", "1", "-y", "--json").json
    assert again == {
        "queue": name, "rewound": True, "scheduled": 0,
        "partitions": [{"topic": name, "partition": 0, "before": 2, "after": 1, "failure": None}],
    }  # fmt: skip
    assert call("queue", "receive", name, "-e").out == "b\n"
    call("queue", "rewind", name, "--to", "@2020-01-01", "-y")
    assert call("queue", "receive", name, "-e").out == "a\nb\n"
