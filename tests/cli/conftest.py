"""What the tests of the command line share."""

import re
import sys

import pytest
from tests.cli.calls import Call, Called

from runnel.cli.main import main
from runnel.testing.process import BrokerProcess


@pytest.fixture
def call(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """Run a command in this process, on the broker that all tests share; its exit code must be as said."""
    monkeypatch.setenv("RUNNEL_BROKER", broker.kafka)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str, code: int = 0) -> Called:
        monkeypatch.setattr(sys, "argv", ["runnel", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        assert ended.value.code == code, out + err
        assert "Traceback" not in err
        return Called(code, out, err)

    return run


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for a topic or a group that no other test uses."""
    return "cli-" + re.sub(r"[^A-Za-z0-9._-]", "-", request.node.nodeid.rpartition("/")[2])
