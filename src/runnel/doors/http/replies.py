"""Answers with another status than their operation has."""

from typing import Any

import msgspec

from runnel.doors.http.operation import Reply


def json(value: Any, status: int) -> Any:
    """A value as JSON; typed as what the operation answers otherwise, for that is its shape."""
    return Reply(msgspec.json.encode(value), status=status)
