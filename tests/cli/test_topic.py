"""`runnel topic`, on a real broker."""

import json

from tests.cli.calls import Call


def test_create_list_describe_delete(call: Call, name: str) -> None:
    assert call("topic", "create", name, "-p", "3").out == f"created topic {name} with 3 partitions\n"
    assert [name, "3", "1", "0", "0", "B"] in call("topic", "ls").rows
    out = call("topic", "describe", name).out
    assert out.startswith(f"Topic {name}  id ")
    assert "All settings are at their defaults" in out
    refused = call("topic", "delete", name, code=2)
    assert f"This deletes {name} (0 messages) for ever." in refused.err
    assert "--yes" in refused.err
    assert call("topic", "delete", name, "--yes").out == f"deleted topic {name}\n"
    assert name not in call("topic", "ls").out
    assert "does not exist" in call("topic", "describe", name, code=1).err


def test_json_is_one_value_a_line(call: Call, name: str) -> None:
    made = call("topic", "create", name, "-p", "2", "-c", "retention.ms=1000000", "--json").json
    assert (made["topic"], made["created"], made["partitions"]) == (name, True, 2)
    rows = [json.loads(line) for line in call("topic", "ls", "--json").out.splitlines()]
    (row,) = [row for row in rows if row["topic"] == name]
    assert row == {
        "topic": name, "id": made["id"], "internal": False, "partitions": 2, "replicas": 1, "messages": 0,
        "size_bytes": 0,
    }  # fmt: skip
    described = call("topic", "describe", name, "--json").json
    assert described["config"]["retention.ms"] == {"value": "1000000", "source": "topic"}
    assert [p["end_offset"] for p in described["partitions"]] == [0, 0]


def test_creating_twice(call: Call, name: str) -> None:
    call("topic", "create", name)
    assert "TOPIC_ALREADY_EXISTS" in call("topic", "create", name, code=1).err
    assert call("topic", "create", name, "--if-not-exists").out == f"topic {name} exists already\n"


def test_a_dry_run_creates_nothing(call: Call, name: str) -> None:
    assert call("topic", "create", name, "-p", "2", "-n").out == f"would create topic {name} with 2 partitions\n"
    call("topic", "describe", name, code=1)


def test_alter_shows_before_and_after(call: Call, name: str) -> None:
    call("topic", "create", name, "-c", "retention.ms=5000")
    assert ["retention.ms", "5000", "6000"] in call("topic", "alter", name, "-c", "retention.ms=6000").rows
    assert "Nothing was changed" in call("topic", "alter", name, "-c", "retention.ms=7000", "--dry-run").out
    reset = call("topic", "alter", name, "--reset", "retention.ms", "--json").json
    assert reset["settings"] == [{"setting": "retention.ms", "before": "6000", "after": "604800000"}]
    assert "nothing to change" in call("topic", "alter", name, code=2).err
    assert "retention.ms" in call("topic", "alter", name, "-c", "retention.ms=soon", code=1).err
    assert "KEY=VALUE" in call("topic", "alter", name, "-c", "retention.ms", code=2).err
    set_ = call("topic", "alter", name, "-c", "retention.sm=1", code=1).err
    taken_back = call("topic", "alter", name, "--reset", "retention.sm", code=1).err
    assert "unknown topic setting 'retention.sm'" in set_
    assert "unknown topic setting 'retention.sm'" in taken_back


def test_partitions_only_grow(call: Call, name: str) -> None:
    call("topic", "create", name, "-p", "2")
    assert call("topic", "partitions", name, "4", "-n").out == f"topic {name} would have 4 partitions (before: 2)\n"
    assert call("topic", "partitions", name, "4").out == f"topic {name} has 4 partitions (before: 2)\n"
    assert "INVALID_PARTITIONS" in call("topic", "partitions", name, "3", code=1).err


def test_trim_shows_its_plan_and_asks(call: Call, name: str) -> None:
    call("topic", "create", name, "-p", "1")
    call("produce", name, *(word for n in range(5) for word in ("-m", f"{n}")))
    assert "it would be 3 messages" in call("topic", "trim", name, "--before", "3", "--dry-run").out
    assert "This removes 3 messages" in call("topic", "trim", name, "--before", "3", code=2).err
    assert f"removed 3 messages of {name}" in call("topic", "trim", name, "--before", "3", "-y").out
    assert call("consume", name, "-e").out == "3\n4\n"
    left = call("topic", "trim", name, "--before", "-1", "-y", "--json").json
    assert left["partitions"] == [{"partition": 0, "start_offset": 3, "new_start_offset": 4, "removed": 1}]
    assert "removed 0 messages" in call("topic", "trim", name, "--before", "start").out
    assert "no place to trim to" in call("topic", "trim", name, "--before", "stored", code=2).err


def test_a_view_is_not_trimmed_and_is_told_of_when_its_source_is_gone(call: Call, name: str) -> None:
    view = f"{name}.view"
    call("topic", "create", name, "-p", "1")
    call("topic", "create", view, "-c", f"view.of={name}", "-c", "view.filter=key = 'a'")
    call("produce", name, "-m", "one", "-k", "a")
    assert f"trim {name}, its source" in call("topic", "trim", view, "--before", "end", "-y", code=1).err
    assert view not in call("topic", "ls").err
    call("topic", "delete", name, "-y")
    assert f"{view} is a view whose source was deleted" in call("topic", "ls").err
    assert f"This deletes {view} (a view whose source is gone) for ever." in call("topic", "delete", view, code=2).err
    call("topic", "delete", view, "-y")
    assert view not in call("topic", "ls").err


def test_describe_with_groups(call: Call, name: str) -> None:
    call("produce", name, "-m", "one", "-m", "two")
    call("consume", name, "-g", f"{name}.g", "-c", "1")
    described = call("topic", "describe", name, "--groups", "--json").json
    assert {"group": f"{name}.g", "state": "Empty", "members": 0, "lag": 1} in described["groups"]


def test_a_name_that_is_none_does_not_hide_what_others_hold(call: Call, name: str) -> None:
    call("produce", name, "-m", "a", "-m", "b")
    assert "nothing was deleted: topic name 't.*' is not allowed" in call("topic", "delete", name, "t.*", code=2).err
    call("topic", "create", f"{name}.source")
    call("topic", "create", f"{name}.view", "-c", f"view.of={name}.source", "-c", "view.filter=headers.a = '1'")
    call("topic", "delete", f"{name}.source", "-y")
    refused = call("topic", "delete", f"{name}.view", name, code=2).err
    assert f"{name}.view (a view whose source is gone), {name} (2 messages)" in refused
    call("topic", "delete", f"{name}.view", name, "-y")
