"""The page about the protocol says what the door does."""

import importlib.util
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "protocol_reference.py"


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("protocol_reference", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PAGE.read_text() == tool.page(), "run python tools/protocol_reference.py"
