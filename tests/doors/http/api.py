"""A client of the HTTP door for tests: one request, one answer."""

import http.client
import json
from dataclasses import dataclass
from typing import Any

LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def code(self) -> str:
        """Of the problem that it is."""
        assert self.headers["content-type"] == "application/problem+json", self
        problem = self.json
        assert problem["status"] == self.status
        assert all(problem[field] for field in ("type", "title", "detail", "next"))
        return str(problem["code"])


class Api:
    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """`body`: bytes as they are, everything else as JSON."""
        connection = http.client.HTTPConnection(self.address, timeout=LIMIT_S)
        try:
            content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, content, headers or {})
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, named, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.ask("POST", path, body, headers)

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        """What it says, which must not be a problem."""
        answer = self.ask(method, path, body)
        assert answer.status < 300, answer
        return answer.json if answer.content else None
