"""`runnel schedule` and sending later, on a real broker."""

import json

from tests.cli.calls import Call


def later(call: Call, topic: str, value: str, *when: str) -> str:
    """Sends a message later; its id."""
    out = call("produce", topic, "-m", value, "-v", *(when or ("--delay", "1h"))).out.strip()
    assert out
    return out


def test_messages_wait_in_the_order_of_their_time(call: Call, name: str) -> None:
    call("topic", "create", name)
    ids = {span: later(call, name, span, "--delay", span) for span in ("2h", "90m", "3h")}
    rows = [json.loads(line) for line in call("schedule", "ls", name, "--json").out.splitlines()]
    assert [(row["id"], row["value"], row["topic"]) for row in rows] == [
        (ids[span], span, name) for span in ("90m", "2h", "3h")
    ]
    assert call("schedule", "ls", name, "-c", "1").rows[1][0] == ids["90m"]
    assert "There are more" in call("schedule", "ls", name, "-c", "1").err
    assert call("schedule", "ls", name, "--count-only").out.startswith(f"3 messages wait for {name}; the next is due ")
    assert call("schedule", "ls", name, "--from", str(rows[1]["due_ms"]), "--json").out.count("\n") == 2
    assert "does not exist" in call("schedule", "ls", f"{name}.none", code=1).err


def test_what_is_cancelled_is_not_listed_and_stays_cancelled_if_it_is_cancelled_again(call: Call, name: str) -> None:
    call("topic", "create", name)
    one = later(call, name, "x")
    assert call("schedule", "cancel", one).out == f"cancelled {one}\n"
    assert "No message waits" in call("schedule", "ls", name).err
    assert call("schedule", "cancel", one, "--json").json["cancelled"] is True
    refused = call("schedule", "cancel", "nobody", "--json", code=1)
    assert json.loads(refused.out)["cancelled"] is False
    assert "1 of 1 could not be cancelled" in refused.err


def test_one_message_is_shown_whole(call: Call, name: str) -> None:
    call("topic", "create", name)
    one = later(call, name, "tea", "--delay", "1h", "-k", "k", "-H", "a=b")
    out = call("schedule", "show", one).out
    assert f"Message {one}  due " in out
    assert f"for {name}/0" in out
    assert ["a", "b"] in call("schedule", "show", one).rows
    assert out.endswith("key     k\ntea\n")
    assert call("schedule", "show", one, "--json").json["value"] == "tea"
    call("schedule", "cancel", one)
    assert "no message waits" in call("schedule", "show", one, code=1).err


def test_a_message_is_moved(call: Call, name: str) -> None:
    call("topic", "create", name)
    one = later(call, name, "x")
    assert call("schedule", "move", one, "--deliver-at", "2099-01-01T00:00:00Z").out == f"moved {one}\n"
    assert json.loads(call("schedule", "ls", name, "--json").out)["due"] == "2099-01-01T00:00:00.000Z"
    assert "say when" in call("schedule", "move", one, code=2).err
    call("schedule", "cancel", one)
    assert "could not be moved" in call("schedule", "move", one, "--delay", "1h", code=1).err


def test_what_is_due_is_sent(call: Call, name: str) -> None:
    call("topic", "create", name)
    later(call, name, "soon", "--delay", "1ms")
    later(call, name, "past", "--deliver-at", "2020-01-01T00:00:00Z")
    assert sorted(call("consume", name, "-c", "2").out.split()) == ["past", "soon"]
    call("queue", "create", f"{name}.q")
    call("queue", "send", f"{name}.q", "-m", "job", "--delay", "1ms")
    assert call("queue", "receive", f"{name}.q", "-c", "1").out == "job\n"


def test_sending_later_says_when_and_refuses_what_it_can_not_promise(call: Call, name: str) -> None:
    call("topic", "create", name)
    told = call("produce", name, "-m", "x", "--deliver-at", "2099-01-01T00:00:00Z").err
    assert told == f"1 message for {name} will be sent 2099-01-01T00:00:00.000Z\n"
    call("queue", "create", name)
    assert call("queue", "send", name, "-m", "x", "--deliver-at", "2099-01-01T00:00:00Z").err == told
    assert "transaction" in call("produce", name, "-m", "x", "--delay", "1s", "--transaction", code=2).err
    assert "no span" in call("produce", name, "-m", "x", "--delay", "soon", code=2).err
