"""The lines for curl in the guides are calls that the door takes."""

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from runnel.doors.http.operation import Operation
from runnel.doors.http.resources import operations
from runnel.doors.http.routes import Routes

GUIDES = Path(__file__).parents[3] / "docs" / "guide"
LINES = [
    (guide.name, line)
    for guide in sorted(GUIDES.glob("*.md"))
    for line in re.findall(r"^ *(curl .*)$", guide.read_text(), re.MULTILINE)
    if "/v1/" in line
]


class Request:
    def header(self, name: str) -> str | None:
        return None


def operation_of(words: list[str]) -> tuple[Operation, list[str], bytes, bytes]:
    """What a line asks for: the operation, the values in its path, its query and its body."""
    body = words[words.index("-d") + 1].encode() if "-d" in words else b""
    method = words[words.index("-X") + 1] if "-X" in words else "POST" if body else "GET"
    [url] = [word for word in words if word.startswith("http://")]
    found = Routes(operations()).find(urlsplit(url).path.encode())
    assert found is not None, url
    return found.methods[method], found.values, urlsplit(url).query.encode(), body


@pytest.mark.parametrize(("guide", "line"), LINES, ids=lambda text: text[:60])
def test_a_line_can_be_typed(guide: str, line: str) -> None:
    operation, values, query, body = operation_of(shlex.split(line))
    assert bool(body) == (operation.body is not None)
    operation.bind(Request(), values, query, body).close()  # type: ignore[arg-type, attr-defined]


def test_there_are_some() -> None:
    assert len(LINES) > 10
