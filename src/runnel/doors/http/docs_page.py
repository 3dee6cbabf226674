"""The page of docs: every operation with a line for curl, and every error, as HTML without a script."""

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from typing import Any, Final

import msgspec

from runnel.doors.http.openapi import document
from runnel.doors.http.operation import SOCKET, Operation
from runnel.doors.http.problems import TABLE, code_of

STYLE: Final = """
:root { color-scheme: light dark; --line: light-dark(#ddd, #444); --dim: light-dark(#666, #aaa); }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); text-transform: capitalize; }
section { margin: 1.5rem 0 2.5rem; }
h3 { font: 600 1rem/1.4 ui-monospace, monospace; margin-bottom: 0; }
code, pre { font: 13px/1.5 ui-monospace, monospace; }
pre { background: light-dark(#f4f4f4, #222); padding: .6rem .8rem; overflow-x: auto; border-radius: 4px; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); }
.dim { color: var(--dim); } nav a { margin-right: 1rem; text-transform: capitalize; }
"""


def page(operations: Sequence[Operation], host: str) -> str:
    described = document(operations)
    parts = [_section(tag, list(some), described, host) for tag, some in groupby(operations, key=lambda each: each.tag)]
    tags = dict.fromkeys(operation.tag for operation in operations)
    links = " ".join(f'<a href="#{tag}">{_words(tag)}</a>' for tag in (*tags, "errors"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Runnel: HTTP</title>'
        '<meta name="viewport" content="width=device-width"><link rel="alternate" href="/openapi.json">'
        f"<style>{STYLE}</style></head><body><h1>Runnel over HTTP</h1>"
        f"<p>{escape(described['info']['description'])} As a document for machines: "
        f'<a href="/openapi.json">/openapi.json</a> (OpenAPI 3.1).</p><nav>{links}</nav>'
        f"{''.join(parts)}{_errors()}</body></html>"
    )


def _words(name: str) -> str:
    return escape(name.replace("_", " "))


def _section(tag: str, operations: Iterable[Operation], described: dict[str, Any], host: str) -> str:
    return f'<h2 id="{tag}">{_words(tag)}</h2>' + "".join(_operation(each, described, host) for each in operations)


def _operation(operation: Operation, described: dict[str, Any], host: str) -> str:
    method = "get" if operation.method == SOCKET else operation.method.lower()
    told = described["paths"][operation.path][method]
    shown = "WebSocket" if operation.method == SOCKET else operation.method
    return (
        f'<section id="{operation.name}"><h3>{shown} {escape(operation.path)}</h3>'
        f"<p>{escape(operation.summary)} {escape(operation.description)}</p>"
        f"<pre>{escape(curl(operation, host))}</pre>"
        f"{_parameters(told.get('parameters', []))}{_fields('Body', _body(told), described)}"
        f"{_fields('Answer', _answer(told), described)}</section>"
    )


def curl(operation: Operation, host: str) -> str:
    """The operation's example as a line for a shell."""
    example = operation.example
    if operation.method == SOCKET:
        return f"websocat {shlex.quote(f'ws://{host}{example.target}')}"
    parts = ["curl", "-s"]
    if operation.method not in ("GET", "POST") or (operation.method == "POST" and example.body is None):
        parts += ["-X", operation.method]
    parts.append(shlex.quote(f"http://{host}{example.target}"))
    if example.body is not None:
        parts += ["-d", shlex.quote(msgspec.json.encode(example.body).decode())]
    return " ".join(parts)


def _parameters(parameters: Sequence[dict[str, Any]]) -> str:
    rows = [
        (each["name"], f"{each['in']}, {_kind(each['schema'])}", each.get("description", ""), _optional(each))
        for each in parameters
    ]
    return _table(("Parameter", "", "", ""), rows)


def _optional(parameter: dict[str, Any]) -> str:
    if parameter["required"]:
        return "required"
    default = parameter["schema"].get("default")
    return "" if default in (None, "") else f"default {default}"


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
    rows: list[tuple[str, str, str, str]] = []
    seen: set[str] = set()
    waiting = _named(schema)
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        component = components[name]
        required = component.get("required", [])
        for field, kind in component.get("properties", {}).items():
            shown = field if len(seen) == 1 else f"{name}.{field}"
            rows.append((shown, _kind(kind), kind.get("description", ""), "required" if field in required else ""))
            waiting += _named(kind)
    return _table((title, "", "", ""), rows)


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
    rows = [
        (f'<a id="{code_of(kind)}">{code_of(kind)}</a>', str(int(row.status)), escape(row.next), "")
        for kind, row in sorted(TABLE.items(), key=lambda item: code_of(item[0]))
    ]
    return f'<h2 id="errors">Errors</h2>{_table(("Code", "Status", "What to do", ""), rows, ready=True)}'


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, ready: bool = False) -> str:
    """`ready`: the cells are HTML already."""
    if not rows:
        return ""
    head = "".join(f"<th>{title}</th>" for title in titles)
    lines = ("".join(f"<td>{cell if ready else escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
