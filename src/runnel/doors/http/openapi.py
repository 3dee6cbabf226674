"""The OpenAPI 3.1 document of all operations, out of their types and docstrings."""

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from types import UnionType
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec

from runnel import __version__
from runnel.doors.http.operation import JSON, SOCKET, Example, Operation, Parameter, Reply, Stream
from runnel.doors.http.pages import CLIENT
from runnel.doors.http.problems import Problem

REF: Final = "#/components/schemas/{name}"
PROBLEM: Final = "application/problem+json"
DESCRIPTION: Final = (
    "Everything that Runnel does, over HTTP. Any broker of a cluster takes any call. Errors are problems (RFC 9457)"
    " with a code, a sentence and what to do next."
)

CLIENT_HEADER: Final = {
    "name": CLIENT, "in": "header", "required": False, "schema": {"type": "string"}, "example": "curl",
    "description": "anything; needed unless a web page of this door asks, as others could not send it",
}  # fmt: skip


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The whole document."""
    schemas, components = _schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        method = "get" if operation.method == SOCKET else operation.method.lower()
        paths.setdefault(operation.path, {}).setdefault(method, _described(operation, schemas))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Runnel", "version": __version__, "description": DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in operations)],
        "paths": paths,
        "components": {"schemas": components},
    }


def _schemas(operations: Iterable[Operation]) -> tuple[dict[int, Any], dict[str, Any]]:
    """The schema of every type that an operation names, by the type's identity, and those they refer to."""
    kinds: list[Any] = [Problem]
    for operation in operations:
        kinds += [parameter.type for parameter in operation.parameters]
        kinds += [kind for kind in (operation.body, *_answers(operation)) if _is_json(kind)]
    found, components = msgspec.json.schema_components(kinds, ref_template=REF)
    return {id(kind): schema for kind, schema in zip(kinds, found, strict=True)}, components


def _is_json(kind: Any) -> bool:
    base = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return base not in (None, type(None), bytes, Reply, Stream)


def content_type(kind: Any) -> str:
    """Of an answer: `Annotated[Reply, "text/plain"]` says that it is no JSON."""
    base, *marks = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if base not in (Reply, Stream):
        return JSON
    return next((mark for mark in marks if isinstance(mark, str)), "application/octet-stream")


def _described(operation: Operation, schemas: dict[int, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation, schemas),
    }
    if operation.description:
        described["description"] = operation.description
    values = _examples(operation.example, operation)
    parameters = [_parameter(each, schemas, values) for each in operation.parameters]
    if operation.changing_get:
        parameters.append(CLIENT_HEADER)
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = _body(operation, schemas)
    return described


def _status(operation: Operation) -> int:
    nothing = operation.result in (None, type(None)) and operation.status == HTTPStatus.OK
    return int(HTTPStatus.NO_CONTENT) if nothing else operation.status


def _responses(operation: Operation, schemas: dict[int, Any]) -> dict[str, Any]:
    statuses = [_status(operation), *([HTTPStatus.MULTI_STATUS] if operation.partly else [])]
    responses = {str(int(status)): _answer(operation, status, schemas) for status in statuses}
    return {**responses, "default": _problem(schemas)}


def _answers(operation: Operation) -> tuple[Any, ...]:
    """The types of what an operation answers: of `A | B` both."""
    return get_args(operation.result) if isinstance(operation.result, UnionType) else (operation.result,)


def _answer(operation: Operation, status: int, schemas: dict[int, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if operation.method != SOCKET and operation.result not in (None, type(None)):
        found = [schemas[id(kind)] if _is_json(kind) else {"type": "string"} for kind in _answers(operation)]
        schema = found[0] if len(found) == 1 else {"anyOf": found}
        answer["content"] = {content_type(operation.result): {"schema": schema}}
    return answer


def _problem(schemas: dict[int, Any]) -> dict[str, Any]:
    return {"description": "What went wrong", "content": {PROBLEM: {"schema": schemas[id(Problem)]}}}


def _body(operation: Operation, schemas: dict[int, Any]) -> dict[str, Any]:
    required = not operation.body_is_optional
    if operation.body is bytes:
        return {"required": required, "content": {"application/octet-stream": {"schema": {}}}}
    content: dict[str, Any] = {"schema": schemas[id(operation.body)]}
    if operation.example.body is not None:
        content["example"] = operation.example.body
    return {"required": required, "content": {JSON: content}}


def _examples(example: Example, operation: Operation) -> dict[str, str]:
    """What the example's address says of each parameter."""
    named = zip(operation.segments, example.segments, strict=True)
    return example.query | {name[1:-1]: value for name, value in named if name.startswith("{")}


def _parameter(parameter: Parameter, schemas: dict[int, Any], values: dict[str, str]) -> dict[str, Any]:
    schema = dict(schemas[id(parameter.type)])
    described: dict[str, Any] = {"name": parameter.shown, "in": parameter.place, "required": parameter.required}
    if "description" in schema:
        described["description"] = schema.pop("description")
    if not parameter.required:
        schema["default"] = parameter.default
    if parameter.name in values:
        described["example"] = values[parameter.name]
    return {**described, "schema": schema}
