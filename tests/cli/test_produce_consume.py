"""`runnel produce` and `runnel consume`, through pipes, on a real broker."""

import json
from pathlib import Path

import pytest
from tests.cli.calls import Call, process

from runnel.testing.process import BrokerProcess


def test_lines_go_in_and_come_out(broker: BrokerProcess, name: str) -> None:
    sent = process(broker.kafka, "produce", name, stdin=b"one\ntwo\nlast without an end")
    assert sent.stderr.decode() == f"sent 3 messages to {name}\n"
    assert process(broker.kafka, "consume", name, "-e").stdout == b"one\ntwo\nlast without an end\n"


def test_messages_need_something_that_ends_them(call: Call, name: str) -> None:
    assert "something that ends them" in call("produce", name, "-D", "", code=2).err
    assert "something that ends them" in call("queue", "send", name, "-D", "", code=2).err


def test_a_large_file(broker: BrokerProcess, name: str, tmp_path: Path) -> None:
    lines = b"".join(b"line %d of the file\n" % n for n in range(30_000))
    (tmp_path / "a.txt").write_bytes(lines)
    process(broker.kafka, "topic", "create", name, "-p", "1")
    process(broker.kafka, "produce", name, str(tmp_path / "a.txt"), "-z", "lz4")
    assert process(broker.kafka, "consume", name, "-e").stdout == lines


def test_keys_headers_and_formats(call: Call, name: str) -> None:
    call("topic", "create", name, "-p", "1")
    call("produce", name, "-K", ":", "-H", "a=1", "-m", "k1:v1", "-m", "no key", "-m", "k2:")
    assert call("consume", name, "-e", "-f", r"%o %k=%s %h\n").out == "0 k1=v1 a=1\n1 =no key a=1\n2 k2= a=1\n"
    assert call("consume", name, "-e", "-K", "|").out == "k1|v1\n|no key\nk2|\n"


def test_where_each_message_went(call: Call, name: str) -> None:
    call("topic", "create", name, "-p", "2")
    out = call("produce", name, "-v", "-p", "1", "-m", "a", "-m", "b").out
    assert out == f"{name}/1@0\n{name}/1@1\n"
    assert call("produce", name, "-v", "-p", "1", "-a", "0", "-m", "c").out == f"{name}/1@?\n"
    assert "has no partition 5" in call("produce", name, "-p", "5", "-m", "x", code=1).err


def test_tombstones_keys_and_other_ends_of_messages(call: Call, broker: BrokerProcess, name: str) -> None:
    call("topic", "create", name, "-p", "1")
    process(broker.kafka, "produce", name, "-D", r"\0", "-Z", "-k", "key", stdin=b"a\nb\0\0c")
    assert call("consume", name, "-e", "-f", r"%k %S;").out == "key 3;key -1;key 1;"


def test_json_goes_round(call: Call, broker: BrokerProcess, name: str) -> None:
    call("topic", "create", name, f"{name}.copy", "-p", "1", "-c", "retention.ms=-1")
    first = [
        {"key": "k", "value": "grün", "headers": [{"key": "h", "value": "1"}], "timestamp_ms": 1_700_000_000_000},
        {"key": None, "value_base64": "/wA=", "headers": []},
        {"value": None},
    ]
    process(broker.kafka, "produce", name, "--json", stdin="\n".join(map(json.dumps, first)).encode())
    lines = call("consume", name, "-e", "--json").out
    rows = [json.loads(line) for line in lines.splitlines()]
    assert rows[0] == {
        "topic": name, "partition": 0, "offset": 0, "timestamp": "2023-11-14T22:13:20.000Z",
        "timestamp_ms": 1_700_000_000_000, "key": "k", "value": "grün", "headers": [{"key": "h", "value": "1"}],
    }  # fmt: skip
    assert (rows[1]["value_base64"], rows[2]["value"]) == ("/wA=", None)
    process(broker.kafka, "produce", f"{name}.copy", "--json", stdin=lines.encode())
    copied = [json.loads(line) for line in call("consume", f"{name}.copy", "-e", "--json").out.splitlines()]
    assert [{**row, "topic": name} for row in copied] == rows


def test_of_messages_that_were_not_kept_the_first_is_named(broker: BrokerProcess, call: Call, name: str) -> None:
    call("topic", "create", name, "-p", "1", "-c", "max.message.bytes=1000")
    text = b"one\n%s\ntwo\n" % (b"x" * 2_000)
    done = process(broker.kafka, "produce", name, "--batch-bytes", "1", stdin=text, code=1)
    first = "message 2 of the input is the first that was not kept"
    assert f"{first}; {len(call('consume', name, '-e').out.split())} of" in done.stderr.decode()


@pytest.mark.parametrize(
    "line",
    [
        "[1]", "{", '{"value": 3}', '{"value": "x", "headers": [{}]}', '{"value": "x", "headers": {}}',
        '{"value_base64": "?"}', '{"value_base64": 3}', '{"value": "x", "value_base64": "eA=="}',
        '{"value": "x", "partition": "1"}', '{"value": "x", "timestamp_ms": true}',
        '{"value": "x", "headers": [{"key": "a"}]}', '{"value": "x", "headers": [{"key": "a", "text": "b"}]}',
    ],
)  # fmt: skip
def test_lines_that_are_no_json(call: Call, name: str, line: str) -> None:
    assert "is not a message in JSON" in call("produce", name, "--json", "-m", line, code=1).err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"vlaue": "x"}', "there is no field 'vlaue', did you mean 'value'?"),
        ('{"value": "x", "Key": "k"}', "there is no field 'Key', did you mean 'key'?"),
        ('{"value": "x", "something": 1}', "there is no field 'something')"),
        ('{"key": "k"}', 'it has no value: say "value": null if it is to have none'),
    ],
)
@pytest.mark.parametrize("command", [["produce"], ["queue", "send"]], ids=" ".join)
def test_a_field_that_is_misspelt_deletes_nothing(
    call: Call, name: str, command: list[str], line: str, told: str
) -> None:
    call("queue", "create", name, "-p", "1")
    assert told in call(*command, name, "--json", "-m", line, code=1).err
    assert call("consume", name, "-e").out == ""


def test_what_any_command_prints_can_be_sent(call: Call, name: str) -> None:
    call("queue", "create", name, "-p", "1", "--attempts", "1")
    call("queue", "send", name, "-m", "one", "-m", "two")
    call("produce", name, "-m", "later", "--delay", "1h")
    printed = [
        call("consume", name, "-e", "--json").out,
        call("queue", "peek", name, "--json").out,
        call("queue", "receive", name, "-c", "1", "--then", "reject", "--json").out,
        call("queue", "receive", name, "-c", "1", "--json").out,
        call("schedule", "ls", name, "--json").out,
    ]
    while not (letters := call("dlq", "ls", name, "--json").out):
        continue
    call("topic", "create", f"{name}.copy", "-p", "1")
    lines = "".join([*printed, letters]).splitlines()
    call("produce", f"{name}.copy", "--json", *(word for line in lines for word in ("-m", line)))
    copied = call("consume", f"{name}.copy", "-e").out.split()
    assert copied == ["one", "two", "one", "two", "one", "two", "later", "one"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["-e"], "0 1 2 3 4 5 6 7 8 9"),
        (["-e", "-o", "start"], "0 1 2 3 4 5 6 7 8 9"),
        (["-e", "-o", "end"], ""),
        (["-e", "-o", "+7"], "7 8 9"),
        (["-e", "-o", "-2"], "8 9"),
        (["-e", "-o", "6"], "6 7 8 9"),
        (["-e", "-o", "@1700000000008"], "8 9"),
        (["-c", "3", "-o", "5"], "5 6 7"),
        (["--until", "3"], "0 1 2"),
        (["-o", "2", "--until", "@1700000000004"], "2 3"),
        (["-e", "-p", "0", "-o", "-1"], "9"),
    ],
)
def test_the_offset_language(call: Call, ten: str, options: list[str], found: str) -> None:
    assert call("consume", ten, *options).out.split() == found.split()


@pytest.fixture(scope="session")
def ten(broker: BrokerProcess) -> str:
    """A topic with ten messages, a millisecond apart."""
    rows = [json.dumps({"value": f"{n}", "timestamp_ms": 1_700_000_000_000 + n}) for n in range(10)]
    process(broker.kafka, "topic", "create", "cli-ten", "-p", "1", "-c", "retention.ms=-1")
    process(broker.kafka, "produce", "cli-ten", "--json", stdin="\n".join(rows).encode())
    return "cli-ten"


def test_a_group_goes_on_where_it_left_off(call: Call, ten: str, name: str) -> None:
    assert call("consume", ten, "-g", name, "-c", "4").out.split() == ["0", "1", "2", "3"]
    assert call("consume", ten, "-g", name, "-e").out.split() == ["4", "5", "6", "7", "8", "9"]
    assert call("consume", ten, "-g", name, "-e").out == ""


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["-o", "later"], "is no place in a partition"),
        (["-o", "stored"], "name the group with -g"),
        (["-g", "g", "-p", "0"], "-g goes with neither -p nor --until"),
        (["-g", "g", "-o", "5"], "runnel group seek"),
        (["-f", "%q"], "%q is not known"),
        (["-f", "%s", "--json"], "exclude each other"),
        (["-c", "0"], "0 is not in the range"),
    ],
)
def test_wrong_usage(call: Call, ten: str, options: list[str], problem: str) -> None:
    assert problem in call("consume", ten, *options, code=2).err


def test_topics_and_partitions_that_are_not_there(call: Call, ten: str, name: str) -> None:
    assert f"topic '{name}' does not exist" in call("consume", name, code=1).err
    assert "has no partition 7" in call("consume", ten, "-p", "7", code=1).err
    assert f"topic '{name}' does not exist" in call("consume", name, "-g", name, code=1).err


def test_several_topics(call: Call, name: str) -> None:
    for letter in "ab":
        call("produce", f"{name}.{letter}", "-m", letter)
    assert sorted(call("consume", f"{name}.a", f"{name}.b", "-e", "-f", "%t %s\\n").out.splitlines()) == [
        f"{name}.a a",
        f"{name}.b b",
    ]


def test_a_message_that_is_too_large_fails_the_command(call: Call, broker: BrokerProcess, name: str) -> None:
    call("topic", "create", name, "-c", "max.message.bytes=500")
    failed = process(broker.kafka, "produce", name, stdin=b"x" * 1_000, code=1)
    assert b"MESSAGE_TOO_LARGE" in failed.stderr
    assert b"Traceback" not in failed.stderr
