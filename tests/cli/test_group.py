"""`runnel group`, on a real broker."""

import json

import pytest
from tests.cli.calls import Call


@pytest.fixture
def billing(call: Call, name: str) -> str:
    """A group that has read 2 of 6 messages in one partition; its topic has the same name."""
    call("topic", "create", name, "-p", "1")
    call("produce", name, *(word for n in range(6) for word in ("-m", f"{n}")))
    call("consume", name, "-g", name, "-c", "2")
    return name


def test_list_and_describe(call: Call, billing: str) -> None:
    assert [billing, "Empty", "classic"] in call("group", "ls").rows
    rows = [json.loads(line) for line in call("group", "ls", "--json").out.splitlines()]
    assert {"group": billing, "state": "Empty", "type": "classic", "protocol": "consumer"} in rows
    out = call("group", "describe", billing)
    assert out.out.startswith(f"Group {billing}  state Empty  type classic  lag 4\n")
    assert [billing, "0", "2", "6", "4", "-"] in out.rows
    described = call("group", "describe", billing, "--json").json
    assert (described["lag"], described["members"]) == (4, [])
    assert described["partitions"] == [
        {
            "topic": billing, "partition": 0, "committed_offset": 2, "start_offset": 0, "end_offset": 6, "lag": 4,
            "member": None,
        }
    ]  # fmt: skip


def test_a_group_that_does_not_exist(call: Call, name: str) -> None:
    assert "GROUP_ID_NOT_FOUND" in call("group", "describe", name, code=1).err
    assert "has committed nothing" in call("group", "seek", name, "--to", "end", code=1).err
    assert "GROUP_ID_NOT_FOUND" in call("group", "delete", name, "-y", code=1).err


def test_seek_shows_its_plan(call: Call, billing: str) -> None:
    plan = call("group", "seek", billing, "--to", "start", "--dry-run")
    assert [billing, "0", "2", "0", "6"] in plan.rows
    assert "Nothing was changed" in plan.out
    assert "repeat it with --yes" in call("group", "seek", billing, "--to", "start", code=2).err
    assert call("group", "describe", billing, "--json").json["lag"] == 4


@pytest.mark.parametrize(
    ("target", "offset"),
    [("start", 0), ("end", 6), ("+1", 1), ("-1", 5), ("4", 4), ("stored-1", 1), ("stored+1", 3), ("99", 6)],
)
def test_seek(call: Call, billing: str, target: str, offset: int) -> None:
    moved = call("group", "seek", billing, f"{billing}/0", "--to", target, "-y", "--json").json
    assert moved["partitions"] == [
        {"topic": billing, "partition": 0, "before": 2, "after": offset, "end_offset": 6, "lag": 6 - offset}
    ]
    partitions = call("group", "describe", billing, "--json").json["partitions"]
    assert partitions[0]["committed_offset"] == offset


def test_seek_can_create_a_group(call: Call, billing: str, name: str) -> None:
    call("group", "seek", f"{name}.new", billing, "--to", "end", "-y")
    assert call("group", "describe", f"{name}.new", "--json").json["lag"] == 0


def test_seek_to_what_is_not_there(call: Call, billing: str) -> None:
    assert "has no partition 9" in call("group", "seek", billing, f"{billing}/9", "--to", "end", code=1).err
    assert "is not TOPIC or TOPIC/PARTITION" in call("group", "seek", billing, "t/x", "--to", "end", code=2).err
    assert "does not exist" in call("group", "seek", billing, "nowhere", "--to", "end", code=1).err


def test_delete(call: Call, billing: str) -> None:
    assert "This deletes the committed offsets" in call("group", "delete", billing, code=2).err
    assert call("group", "delete", billing, "-y").out == f"deleted group {billing}\n"
    assert billing not in call("group", "ls").out


def test_the_group_of_a_queue_is_deleted_with_the_queue_alone(call: Call, name: str) -> None:
    call("queue", "create", name)
    assert f"'runnel queue delete {name}'" in call("group", "delete", name, "-y", code=1).err
    assert name in call("queue", "ls").out
    call("produce", name, "-m", "one")
    call("consume", name, "-g", name, "-c", "1")
    assert call("group", "delete", name, "-y").out == f"deleted group {name}\n", "a group of readers has but its name"
    assert name in call("queue", "ls").out
