"""The page of docs: every operation with a line for curl, and every error, as HTML without a script."""

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from typing import Any, Final

import msgspec

from runnel.doors.http.openapi import content_type, document
from runnel.doors.http.operation import EVENTS, SOCKET, Operation
from runnel.doors.http.pages import CLIENT
from runnel.doors.http.problems import TABLE, code_of

STYLE: Final = """
:root { color-scheme: light dark; --line: light-dark(#ddd, #444); --dim: light-dark(#666, #aaa); }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); text-transform: capitalize; }
section { margin: 1.5rem 0 2.5rem; }
h3 { font: 600 1rem/1.4 ui-monospace, monospace; margin-bottom: 0; }
code, pre { font: 13px/1.5 ui-monospace, monospace; }
pre { background: light-dark(#f4f4f4, #222); padding: .6rem .8rem; overflow-x: auto; border-radius: 4px; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; margin-bottom: .8rem; }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
th:first-child { width: 34%; } th:nth-child(2) { width: 26%; }
td:nth-child(2) { color: var(--dim); }
nav { columns: 24rem 2; } nav div { break-inside: avoid; margin-bottom: .8rem; }
nav a { display: block; font: 13px/1.6 ui-monospace, monospace; overflow-wrap: anywhere; }
nav b a { font: 600 15px/1.6 system-ui, sans-serif; text-transform: capitalize; }
a { text-decoration: none; } a:hover { text-decoration: underline; }
:target { background: light-dark(#fff6cc, #443c10); }
"""


BODY: Final = "Body"


def page(operations: Sequence[Operation], host: str) -> str:
    described = document(operations)
    parts = [_section(tag, list(some), described, host) for tag, some in groupby(operations, key=lambda each: each.tag)]
    links = "".join(_links(tag, some) for tag, some in groupby(operations, key=lambda each: each.tag))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Runnel: HTTP</title>'
        '<meta name="viewport" content="width=device-width"><link rel="alternate" href="/openapi.json">'
        f"<style>{STYLE}</style></head><body><h1>Runnel over HTTP</h1>"
        f"<p>{escape(described['info']['description'])} As a document for machines: "
        f'<a href="/openapi.json">/openapi.json</a> (OpenAPI 3.1).</p><nav>{links}'
        '<div><b><a href="#errors">errors</a></b></div></nav>'
        f"{''.join(parts)}{_errors()}</body></html>"
    )


def _links(tag: str, operations: Iterable[Operation]) -> str:
    """The operations of one kind, to go to."""
    to = "".join(f'<a href="#{each.name}">{_shown(each)} {escape(each.path)}</a>' for each in operations)
    return f'<div><b><a href="#{_anchor(tag)}">{_words(tag)}</a></b>{to}</div>'


def _shown(operation: Operation) -> str:
    return "WebSocket" if operation.method == SOCKET else operation.method


def _prose(text: str) -> str:
    """What stands between backticks is code."""
    return "".join(f"<code>{part}</code>" if n % 2 else part for n, part in enumerate(escape(text).split("`")))


def _anchor(tag: str) -> str:
    """The id of a section: operations have their names for ids, and some are named as their section."""
    return f"about-{tag}"


def _words(name: str) -> str:
    return escape(name.replace("_", " "))


def _section(tag: str, operations: Iterable[Operation], described: dict[str, Any], host: str) -> str:
    shown = "".join(_operation(each, described, host) for each in operations)
    return f'<h2 id="{_anchor(tag)}">{_words(tag)}</h2>{shown}'


def _operation(operation: Operation, described: dict[str, Any], host: str) -> str:
    method = "get" if operation.method == SOCKET else operation.method.lower()
    told = described["paths"][operation.path][method]
    return (
        f'<section><h3 id="{operation.name}">{_shown(operation)} {escape(operation.path)}</h3>'
        f"<p>{_prose(operation.summary)} {_prose(operation.description)}</p>"
        f"<pre>{escape(curl(operation, host))}</pre>"
        f"{_parameters(told.get('parameters', []))}{_fields(BODY, _body(told), described)}"
        f"{_fields('Answer', _answer(told), described)}</section>"
    )


def curl(operation: Operation, host: str) -> str:
    """The operation's example as a line for a shell."""
    example = operation.example
    if operation.method == SOCKET:
        return f"websocat {shlex.quote(f'ws://{host}{example.target}')}"
    parts = ["curl", "-s"]
    if content_type(operation.result) == EVENTS:
        parts.append("-N")  # or curl keeps them until it has a buffer full
    if operation.method not in ("GET", "POST") or (operation.method == "POST" and example.body is None):
        parts += ["-X", operation.method]
    if operation.changing_get:
        parts += ["-H", f"'{CLIENT}: curl'"]
    parts.append(shlex.quote(f"http://{host}{example.target}"))
    if example.body is not None:
        parts += ["-d", shlex.quote(msgspec.json.encode(example.body).decode())]
    return " ".join(parts)


def _parameters(parameters: Sequence[dict[str, Any]]) -> str:
    rows = [
        (_code(each["name"]), escape(f"{each['in']}, {_kind(each['schema'])}"), _told(each, required=each["required"]))
        for each in parameters
    ]
    return _table(("Parameter", "", ""), rows)


def _told(described: dict[str, Any], *, required: bool) -> str:
    """What is said of a parameter or a field, and whether it may be left out."""
    default = described.get("schema", described).get("default")
    left_out = "required" if required else "" if default in (None, "") else f"default {_json(default)}"
    return "; ".join(part for part in (_prose(described.get("description", "")), escape(left_out)) if part)


def _json(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _body(told: dict[str, Any]) -> dict[str, Any] | None:
    return _schema(told.get("requestBody", {}))


def _answer(told: dict[str, Any]) -> dict[str, Any] | None:
    return _schema(next(iter(told["responses"].values())))


def _schema(part: dict[str, Any]) -> dict[str, Any] | None:
    content = part.get("content", {}).get("application/json")
    return None if content is None else content["schema"]


def _fields(title: str, schema: dict[str, Any] | None, described: dict[str, Any]) -> str:
    """The fields of an object, and those of the objects in it, once each."""
    if schema is None:
        return ""
    components = described["components"]["schemas"]
    rows: list[tuple[str, str, str]] = []
    seen: set[str] = set()
    waiting = _named(schema)
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        component = components[name]
        required = component.get("required", []) if title == BODY else []  # nobody has to give what is answered
        for field, kind in component.get("properties", {}).items():
            shown = field if len(seen) == 1 else f"{name}.{field}"
            rows.append((_code(shown), escape(_kind(kind)), _told(kind, required=field in required)))
            waiting += _named(kind)
    return _table((title, "", ""), rows)


def _named(schema: Any) -> list[str]:
    """The components that a schema refers to, at any depth."""
    if isinstance(schema, dict):
        own = [schema["$ref"].rpartition("/")[2]] if "$ref" in schema else []
        return own + [name for part in schema.values() for name in _named(part)]
    return [name for part in schema for name in _named(part)] if isinstance(schema, list) else []


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return " or ".join(str(each) for each in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(each) for each in schema["anyOf"]))
    if schema.get("type") == "array":
        inner = schema.get("items")
        return f"list of {_kind(inner)}" if isinstance(inner, dict) else "list"
    return str(schema.get("type", "anything"))


def _errors() -> str:
    told = {code_of(kind): row for kind, row in TABLE.items()}  # by code: two classes may have one
    rows = [
        (f'<code id="{code}">{code}</code>', str(int(row.status)), _prose(row.next))
        for code, row in sorted(told.items())
    ]
    return f'<h2 id="errors">Errors</h2>{_table(("Code", "Status", "What to do"), rows)}'


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The cells are HTML."""
    if not rows:
        return ""
    head = "".join(f"<th>{title}</th>" for title in titles)
    lines = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
