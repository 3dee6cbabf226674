"""Topics over HTTP."""

from typing import Any

from .api import Api


def test_the_life_of_a_topic(api: Api) -> None:
    made = api.post("/v1/topics", {"name": "biography", "partitions": 3, "settings": {"retention.ms": 86_400_000}})
    assert made.status == 201, made.json
    assert (made.json["partitions"], made.json["replicas"]) == (3, 1)
    assert api.post("/v1/topics", {"name": "biography"}).code == "topic-already-exists"
    told = api.ok("GET", "/v1/topics/biography")
    assert told["settings"] == {"retention.ms": "86400000"}
    assert [(each["partition"], each["start_offset"], each["end_offset"]) for each in told["partitions"]] == [
        (0, 0, 0), (1, 0, 0), (2, 0, 0),
    ]  # fmt: skip
    assert api.ask("POST", "/v1/topics/biography/partitions", {"count": 5}).status == 204
    assert len(api.ok("GET", "/v1/topics/biography")["partitions"]) == 5
    changed = {"settings": {"retention.ms": None, "flush.mode": "os", "preallocate": True}}
    assert api.ask("PATCH", "/v1/topics/biography", changed).status == 204
    assert api.ok("GET", "/v1/topics/biography")["settings"] == {"flush.mode": "os", "preallocate": "true"}
    assert api.ask("DELETE", "/v1/topics/biography").status == 204
    assert api.get("/v1/topics/biography").code == "unknown-topic"
    assert api.ask("DELETE", "/v1/topics/biography").status == 404


def test_topics_are_listed_by_name_and_in_parts(api: Api) -> None:
    for name in ("list-c", "list-a", "list-b"):
        api.ok("POST", "/v1/topics", {"name": name})
    first = api.ok("GET", "/v1/topics?prefix=list-&limit=2")
    assert ([each["name"] for each in first["topics"]], first["more"]) == (["list-a", "list-b"], True)
    rest = api.ok("GET", "/v1/topics?prefix=list-&limit=2&after=list-b")
    assert ([each["name"] for each in rest["topics"]], rest["more"]) == (["list-c"], False)
    assert not any(each["internal"] for each in api.ok("GET", "/v1/topics")["topics"])


def test_a_dry_run_changes_nothing(api: Api) -> None:
    assert api.post("/v1/topics?dry_run=true", {"name": "dry", "partitions": 2}).status == 201
    assert api.get("/v1/topics/dry").status == 404


def test_what_is_wrong_with_a_topic_is_said(api: Api) -> None:
    assert api.post("/v1/topics", {"name": "a/b"}).code == "invalid-topic-name"
    assert api.post("/v1/topics", {"name": "few", "replicas": 7}).code == "invalid-replication-factor"
    assert api.post("/v1/topics", {"name": "set", "settings": {"nonsense": 1}}).code == "invalid-config"
    assert api.post("/v1/topics", {"name": "none", "partitions": 0}).code == "invalid-input"


def test_all_settings_are_told_with_what_they_mean(api: Api) -> None:
    api.ok("POST", "/v1/topics", {"name": "settings", "settings": {"retention.ms": 5}})
    told = {each["name"]: each for each in api.ok("GET", "/v1/topics/settings/settings")}
    assert (told["retention.ms"]["value"], told["retention.ms"]["default"]) == ("5", False)
    assert told["flush.mode"]["default"]
    assert all(each["doc"] for each in told.values())


# --- trimming
def removed(answer: Any) -> list[tuple[int, int, int]]:
    return [(one["before"], one["after"], one["removed"]) for one in answer["partitions"]]


def offsets(api: Api, topic: str, partition: int = 0) -> list[int]:
    path = f"/v1/topics/{topic}/partitions/{partition}/messages?offset=start"
    return [each["offset"] for each in api.ok("GET", path)["messages"]]


def test_a_topic_is_trimmed_to_an_offset_a_time_or_its_end(api: Api) -> None:
    api.ok("POST", "/v1/topics", {"name": "trim", "partitions": 2})
    sent = [{"text": f"{n}", "partition": n % 2, "timestamp_ms": 1_000_000 + n} for n in range(10)]
    api.ok("POST", "/v1/topics/trim/messages", sent)
    path = "/v1/topics/trim/trim"
    at_two = {"to": "offset", "offset": 2}
    assert removed(api.ok("POST", f"{path}?dry_run=true", at_two)) == [(0, 2, 2)] * 2
    assert offsets(api, "trim") == [0, 1, 2, 3, 4]
    assert removed(api.ok("POST", path, {**at_two, "partitions": [0]})) == [(0, 2, 2)]
    assert removed(api.ok("POST", path, {**at_two, "partitions": [0]})) == [(2, 2, 0)], "asked again"
    assert [offsets(api, "trim", number) for number in (0, 1)] == [[2, 3, 4], [0, 1, 2, 3, 4]]
    assert removed(api.ok("POST", path, {"to": "time", "time": 1_000_007})) == [(2, 4, 2), (0, 3, 3)]
    assert [offsets(api, "trim", number) for number in (0, 1)] == [[4], [3, 4]]
    assert removed(api.ok("POST", path, {"to": "offset", "offset": 1})) == [(4, 4, 0), (3, 3, 0)]
    assert removed(api.ok("POST", path, {"to": "end"})) == [(4, 5, 1), (3, 5, 2)]
    assert [offsets(api, "trim", number) for number in (0, 1)] == [[], []]
    api.ok("POST", "/v1/topics/trim/messages", {"text": "after", "partition": 0})
    assert offsets(api, "trim") == [5]


def test_what_can_not_be_trimmed_is_told(api: Api) -> None:
    api.ok("POST", "/v1/topics", {"name": "trim-not"})
    api.ok("POST", "/v1/topics", {"name": "trim-keys", "settings": {"cleanup.policy": "compact"}})
    settings = {"view.of": "trim-not", "view.filter": "key = 'a'"}
    api.ok("POST", "/v1/topics", {"name": "trim-view", "settings": settings})
    for dry_run in ("", "?dry_run=true"):
        for topic, body, code in (
            ("trim-not", {"to": "offset"}, "invalid-input"),
            ("trim-not", {"to": "start"}, "invalid-input"),
            ("trim-not", {"to": "end", "partitions": [7]}, "unknown-topic"),
            ("trim-nowhere", {"to": "end"}, "unknown-topic"),
            ("trim-keys", {"to": "end"}, "policy-violation"),
            ("trim-view", {"to": "end"}, "read-only-topic"),
        ):
            assert api.post(f"/v1/topics/{topic}/trim{dry_run}", body).code == code, (topic, body)
