"""`runnel dlq`, on a real broker."""

import json

import pytest
from tests.cli.calls import Call

from runnel.cli.dlq_move import _print_state
from runnel.model.calls import RedriveState


@pytest.fixture
def dead(call: Call, name: str) -> str:
    """A queue with three dead letters, {"n":0} to {"n":2}."""
    call("queue", "create", name)
    values = [word for n in range(3) for word in ("-m", f'{{"n":{n}}}')]
    call("queue", "send", name, *values, "-k", "k", "-H", "a=b")
    call("queue", "receive", name, "-c", "3", "--then", "reject", "--reason", "broken")
    while call("dlq", "ls", name, "--json").out.count("\n") < 3:
        pass
    return name


def test_letters_are_listed_with_reason_and_origin(call: Call, dead: str) -> None:
    assert [dead, f"{dead}.dead", "3"] in call("dlq", "ls").rows
    assert ["1", "broken", f"{dead}/0@2", "k", '{"n":2}'] == call("dlq", "ls", dead).rows[3][2:]
    rows = [json.loads(line) for line in call("dlq", "ls", dead, "--json").out.splitlines()]
    assert [(row["reason"], row["attempts"], row["origin"]["offset"], row["value"]) for row in rows] == [
        ("broken", 1, n, f'{{"n":{n}}}') for n in range(3)
    ]
    few = call("dlq", "ls", dead, "-c", "1")
    assert len(few.rows) == 2
    assert "There are more: go on with --from 0/1" in few.err
    rest = call("dlq", "ls", dead, "-c", "2", "--from", "0/1")
    assert [row[0] for row in rest.rows[1:]] == ["0/1", "0/2"]
    assert "There are more" not in rest.err
    assert len(call("dlq", "ls", dead, "--filter", "body.n > 0").rows) == 3
    assert len(call("dlq", "ls", dead, "-p", "0", "-o", "2").rows) == 2


def test_queues_with_dead_letters_are_listed_page_by_page(call: Call, dead: str) -> None:
    first, second = sorted((dead, f"{dead}.more"))
    call("queue", "create", second, "-c", f"dead.letter.topic={dead}.dead")
    call("queue", "send", second, "-m", "x")
    call("queue", "receive", second, "-c", "1", "--then", "reject")
    while call("queue", "describe", second, "--json").json["dead"] < 1:
        continue
    call("queue", "create", f"{first}.alive")  # has none
    page = call("dlq", "ls", "--from", first, "-c", "1")
    assert page.rows[1:] == [[first, f"{dead}.dead", "3"]]
    assert f"go on with --from {second}" in page.err
    rest = [json.loads(line) for line in call("dlq", "ls", "--from", second, "-c", "1", "--json").out.splitlines()]
    assert rest == [{"queue": second, "topic": f"{dead}.dead", "messages": 1}]  # its own alone
    assert "name it" in call("dlq", "ls", "--filter", "body.n > 0", code=2).err


def test_one_letter_is_shown_whole(call: Call, dead: str) -> None:
    out = call("dlq", "show", dead, "0/1").out
    assert f"Dead letter 0/1  of {dead}.dead" in out
    assert "after 1 attempt: broken" in out
    assert f"was     {dead}/0@1" in out
    assert out.endswith('key     k\n{"n":1}\n')
    assert call("dlq", "show", dead, "0/1", "--json").json["value"] == '{"n":1}'
    assert "no dead letter 0/99" in call("dlq", "show", dead, "0/99", code=1).err
    assert "PARTITION/OFFSET" in call("dlq", "show", dead, "1", code=2).err


def test_letters_go_back_once(call: Call, dead: str) -> None:
    assert "it would be 3 dead letters of 3" in call("dlq", "redrive", dead, "--dry-run").out
    assert "This sends 3 dead letters" in call("dlq", "redrive", dead, code=2).err
    assert call("queue", "receive", dead, "-e").out == ""
    assert "dry run of" in call("dlq", "redrive", dead, "--status").out
    assert "is done: 3 dead letters sent back" in call("dlq", "redrive", dead, "-y").out
    assert "is done: 3 dead letters sent back" in call("dlq", "redrive", dead, "--status").out
    assert sorted(call("queue", "receive", dead, "-e").out.splitlines()) == ['{"n":0}', '{"n":1}', '{"n":2}']
    assert "no dead letters" in call("dlq", "ls", dead).err
    assert "it would be 0 dead letters" in call("dlq", "redrive", dead, "-n").out
    nothing = call("dlq", "redrive", dead)
    assert (nothing.out, nothing.err) == ("", f"There is no dead letter of {dead} to send back.\n")
    assert call("dlq", "redrive", dead, "--json").json["dry_run"] is False


def test_letters_are_chosen_and_repaired(call: Call, dead: str) -> None:
    one = call("dlq", "redrive", dead, "--only", "0/1", "--value", '{"n":11}', "-y", "--json").json
    assert (one["state"], one["moved"], one["dry_run"]) == ("done", 1, False)
    call(
        "dlq", "redrive", dead, "--filter", "body.n = 2", "--merge", '{"x":1}', "--set-header", "fixed=yes",
        "--remove-header", "a", "-y",
    )  # fmt: skip
    got = [json.loads(line) for line in call("queue", "receive", dead, "-e", "--json").out.splitlines()]
    assert [json.loads(row["value"]) for row in got] == [{"n": 11}, {"n": 2, "x": 1}]
    headers = [{each["key"]: each.get("value") for each in row["headers"]} for row in got]
    assert (headers[0]["a"], "fixed" in headers[0]) == ("b", False)
    assert (headers[1]["fixed"], "a" in headers[1]) == ("yes", False)
    assert [row[0] for row in call("dlq", "ls", dead).rows[1:]] == ["0/0"]


def test_letters_that_cannot_be_merged_into_are_passed_over(call: Call, dead: str) -> None:
    call("queue", "send", dead, "-m", "[" * 3_000)
    call("queue", "receive", dead, "-c", "1", "--then", "reject")
    while call("dlq", "ls", dead, "--json").out.count("\n") < 4:
        pass
    told = call("dlq", "redrive", dead, "--merge", '{"b":1}', "-y", code=1)
    assert "3 dead letters sent back, 1 passed over" in told.out
    assert f"not all dead letters of {dead} can go back; the first: " in told.err
    assert "offset 3 is not JSON" in told.err
    assert "offset 3 is not JSON" in call("dlq", "redrive", dead, "--status").out


def test_a_value_can_be_emptied_and_a_letter_that_is_not_there_is_told(call: Call, dead: str) -> None:
    call("dlq", "redrive", dead, "--only", "0/1", "--value", "", "-y")
    assert call("queue", "receive", dead, "-c", "1", "--json").json["value"] == ""
    for gone in ("0/1", "0/99"):
        told = call("dlq", "redrive", dead, "--only", gone, "-y", code=1)
        assert f"no dead letter is at offset {gone[2:]}" in told.err
        assert told.out == ""  # nothing was done


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (RedriveState("q", "t", "running", 5, 3, 2, 9, "", True), "dry run of q is running: 3 dead letters that would"),
        (RedriveState("q", "t", "failed", dry_run=True), "dry run of q is failed: 0 dead letters that would be sent"),
        (RedriveState("q", "t", "running", stopping=True), "re-drive of q is stopping: 0 dead letters sent back"),
        (RedriveState("q", "t", "failed"), "re-drive of q is failed"),
        (RedriveState("q", "t", "done", dry_run=True), "dry run of q is done: 0 dead letters that would be sent back"),
    ],
)
def test_how_a_re_drive_stands_is_told(state: RedriveState, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    _print_state(state, as_json=False)
    assert told in capsys.readouterr().out


def test_letters_go_to_another_topic(call: Call, dead: str) -> None:
    call("topic", "create", f"{dead}.v2")
    call("dlq", "redrive", dead, "--to", f"{dead}.v2", "--limit", "2", "-y")
    assert call("consume", f"{dead}.v2", "-e").out == '{"n":0}\n{"n":1}\n'


def test_there_is_one_number_of_dead_letters(call: Call, dead: str) -> None:
    def told() -> list[int]:
        """What each command says how many dead letters there are."""
        [listed] = [row for row in call("queue", "ls", dead).rows if row[0] == dead]
        first = call("queue", "describe", dead).rows[0]
        [json_row] = [each for line in call("dlq", "ls", "--json", "-c", "1000").out.splitlines()
                      if (each := json.loads(line))["queue"] == dead] or [{"messages": 0}]  # fmt: skip
        return [
            int(listed[-1]),
            int(first[first.index("dead") + 1]),
            call("queue", "describe", dead, "--json").json["dead"],
            json_row["messages"],
            call("dlq", "redrive", dead, "-n", "--json").json["moved"],
            call("dlq", "drop", dead, "-n", "--json").json["messages"],
            len(call("dlq", "ls", dead).rows[1:]),
        ]

    assert told() == [3] * 7
    call("dlq", "redrive", dead, "--only", "0/1", "-y")
    assert told() == [2] * 7
    assert call("dlq", "drop", dead, "--until", "0/1", "-y").out == f"removed 1 dead letter of {dead}\n"
    assert told() == [1] * 7
    call("dlq", "redrive", dead, "-y")
    assert told() == [0] * 7
    assert call("queue", "describe", dead, "--json").json["died"] == 3
    assert call("dlq", "drop", dead).out == f"removed 0 dead letters of {dead}\n"  # nothing to ask about


def test_letters_are_dropped_for_ever(call: Call, dead: str) -> None:
    assert call("dlq", "drop", dead, "--until", "0/1", "-n").out == f"would remove 2 dead letters of {dead}\n"
    assert "for ever" in call("dlq", "drop", dead, code=2).err
    dropped = call("dlq", "drop", dead, "--until", "0/1", "-y", "--json").json
    assert dropped == {"queue": dead, "dropped": True, "messages": 2}
    assert [row[0] for row in call("dlq", "ls", dead).rows[1:]] == ["0/2"]


def test_what_is_wrong_is_said(call: Call, name: str) -> None:
    call("queue", "create", name)
    assert "no dead letters" in call("dlq", "ls", name).err
    assert "--only" in call("dlq", "redrive", name, "--value", "x", code=2).err
    assert "has no dead letters" in call("dlq", "redrive", name, "--only", "0/17", code=1).err
    assert "name it with -p" in call("dlq", "ls", name, "-o", "1", code=2).err
    assert "does not exist" in call("dlq", "ls", f"{name}.x", code=1).err
