"""The document and the page: all operations are in them, and what they say holds."""

import re
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from runnel.doors.http.docs_page import curl, page
from runnel.doors.http.openapi import document
from runnel.doors.http.operation import SOCKET, Operation
from runnel.doors.http.problems import TABLE, code_of
from runnel.doors.http.resources import operations
from runnel.doors.http.routes import Routes

from .api import Api

ALL = operations()
DOCUMENT = msgspec.json.decode(msgspec.json.encode(document(ALL)))


def named(operation: Operation) -> str:
    return operation.name


def references(part: Any) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [each for value in part.values() for each in references(value)]
    return [each for value in part for each in references(value)] if isinstance(part, list) else []


def test_the_document_is_whole() -> None:
    """The rules of OpenAPI 3.1 that a document can break by accident."""
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert DOCUMENT["info"]["title"]
    assert DOCUMENT["info"]["version"]
    components = DOCUMENT["components"]["schemas"]
    assert {each.removeprefix("#/components/schemas/") for each in references(DOCUMENT)} <= set(components)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in components)
    told = [each for methods in DOCUMENT["paths"].values() for each in methods.values()]
    names = [each["operationId"] for each in told]
    assert len(names) == len(set(names)) == len(ALL)
    for path, methods in DOCUMENT["paths"].items():
        for each in methods.values():
            check_parameters(path, each.get("parameters", []))
            assert all(key == "default" or 100 <= int(key) < 600 for key in each["responses"])
            assert all(answer["description"] for answer in each["responses"].values())


def test_all_that_an_operation_answers_is_told() -> None:
    send = DOCUMENT["paths"]["/send"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert send == {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("Sent", "Scheduled")]}
    partly = {
        path for path, methods in DOCUMENT["paths"].items() for each in methods.values() if "207" in each["responses"]
    }
    verbs = ("messages", "ack", "nack", "reject", "settle", "extend")
    assert partly == {"/v1/topics/{topic}/messages", *(f"/v1/queues/{{queue}}/{verb}" for verb in verbs)}
    ack = DOCUMENT["paths"]["/v1/queues/{queue}/ack"]["post"]["responses"]
    assert ack["207"]["content"] == ack["200"]["content"]


def test_streams_are_told_as_events() -> None:
    answers = [methods["get"]["responses"]["200"] for path, methods in DOCUMENT["paths"].items() if "/events" in path]
    assert len(answers) >= 4
    assert all(list(answer["content"]) == ["text/event-stream"] for answer in answers)


def check_parameters(path: str, parameters: list[dict[str, Any]]) -> None:
    in_path = {each["name"] for each in parameters if each["in"] == "path"}
    assert in_path == set(re.findall(r"{(\w+)}", path))
    assert all(each["required"] for each in parameters if each["in"] == "path")
    assert {each["in"] for each in parameters} <= {"path", "query", "header"}
    keys = [(each["in"], each["name"]) for each in parameters]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("operation", ALL, ids=named)
def test_the_example_of_every_operation_is_allowed(operation: Operation) -> None:
    example = operation.example
    assert example.method == ("GET" if operation.method == SOCKET else operation.method)
    target = urlsplit(example.target)
    found = Routes(ALL).find(target.path.encode())
    assert found is not None
    assert found.methods[operation.method] is operation
    body = b"" if example.body is None else msgspec.json.encode(example.body)
    needs_body = operation.body is not None and not operation.body_is_optional
    assert needs_body == (example.body is not None), "an example shows a body if there is one"

    class Request:
        def header(self, name: str) -> str | None:
            return None

    more = {"socket": None} if operation.method == SOCKET else {}
    operation.bind(Request(), found.values, target.query.encode(), body, **more).close()  # type: ignore[arg-type, attr-defined]


@pytest.mark.parametrize("operation", ALL, ids=named)
def test_every_operation_says_what_it_does(operation: Operation) -> None:
    assert re.fullmatch(r"[A-Z][^\n]{8,118}[.]", operation.summary), operation.summary


def test_the_page_has_everything_and_needs_nothing_from_elsewhere() -> None:
    html = page(ALL, "127.0.0.1:8080")
    for operation in ALL:
        assert f'id="{operation.name}"' in html
    for kind in TABLE:
        assert f'id="{code_of(kind)}"' in html
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(ids)
    assert "default False" not in html
    assert "default false" in html
    assert "<script" not in html
    links = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert [link for link in links if not link.startswith(("/", "#"))] == []


def test_a_line_for_curl_can_be_typed() -> None:
    lines = {operation.name: curl(operation, "h:1") for operation in ALL}
    assert lines["list_topics"] == "curl -s 'http://h:1/v1/topics?limit=100'"
    assert lines["delete_topic"] == "curl -s -X DELETE http://h:1/v1/topics/orders"
    assert lines["topic_events"].startswith("curl -s -N 'http")
    assert lines["queue_events"].startswith("curl -s -N -H 'Runnel-Client: curl' 'http")
    assert lines["add_partitions"] == """curl -s http://h:1/v1/topics/orders/partitions -d '{"count":6}'"""


def test_both_are_served(api: Api) -> None:
    served = api.get("/openapi.json")
    assert (served.status, served.headers["content-type"]) == (200, "application/json")
    assert served.json == DOCUMENT
    html = api.get("/docs")
    assert html.headers["content-type"] == "text/html; charset=utf-8"
    assert api.address.encode() in html.content


def test_the_page_leads_to_every_operation_and_loads_nothing_from_elsewhere() -> None:
    html = page(ALL, "h:1")
    for operation in ALL:
        assert f'<a href="#{operation.name}">' in html
        assert f' id="{operation.name}">' in html
    assert "`" not in re.sub(r"<pre>.*?</pre>", "", html), "what is code is shown as code"
    assert not re.search(r"<script|<img|<link rel=.stylesheet|@import|url\(", html)
