"""kafka-python's own integration tests, run against the broker.

They come out of its source archive and run in an environment of their own. What does not pass is listed in
kafka_python_suite.toml with its reason; a test that fails unexpectedly and one that passes unexpectedly both fail here.
"""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.compat import setup_clients
from tests.compat.stage import require

from runnel.testing.process import BrokerProcess

EXPECTED = Path(__file__).with_name("kafka_python_suite.toml")
SUITE_S_MAX = 280
TEST_S_MAX = 60
SUMMARY = re.compile(r"^(FAILED|ERROR) test/integration/\S+::(\S+)", re.MULTILINE)
VERDICT = re.compile(r"^(test/integration/\S+)::(\S+) .*?\b(PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)

# The archive leaves out what its fixtures import: all that is asked of it when the broker runs elsewhere.
SERVICE = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    pass
"""


def run_suite(address: str) -> str:
    """The verbose output of a whole run."""
    suite = setup_clients.SUITE
    (suite / "test" / "__init__.py").touch()  # else Python's own `test` package is found first
    (suite / "test" / "service.py").write_text(SERVICE)
    environment = {
        **os.environ,
        "KAFKA_URI": f"kafka://{address}",
        "KAFKA_VERSION": "4.3.0",
        "KAFKA_ROOT": str(suite),
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop("PYTHONPATH", None)
    options = ["-o", "addopts=", "-o", "log_level=WARNING", "-v", "-p", "no:cacheprovider"]
    limits = ["--timeout", str(TEST_S_MAX), "--timeout-method", "signal"]
    python = setup_clients.SUITE_VENV / "bin" / "python"
    command = [str(python), "-m", "pytest", *options, *limits, "test/integration"]
    done = subprocess.run(
        command, cwd=suite, env=environment, capture_output=True, text=True, timeout=SUITE_S_MAX, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.timeout(SUITE_S_MAX + 20)
def test_the_clients_own_suite(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    require("suite")
    if request.config.getoption("--bootstrap", default=None):
        pytest.skip("the list of what does not pass holds for Runnel")
    settings = {"RUNNEL_BROKER_ID": "0", "RUNNEL_DEFAULT_PARTITIONS": "4"}  # as the suite starts its own
    with BrokerProcess(tmp_path / "data", environment=settings) as broker:
        output = run_suite(broker.kafka)
    verdicts = {name: verdict for _, name, verdict in VERDICT.findall(output)}
    verdicts |= {name: verdict for verdict, name in SUMMARY.findall(output)}  # a thread may write into a line of those
    expected = tomllib.loads(EXPECTED.read_text())
    got = {name: "FAILED" if verdict == "ERROR" else verdict for name, verdict in verdicts.items()}
    wanted = dict.fromkeys(got, "PASSED")
    wanted |= dict.fromkeys(expected["skips"], "SKIPPED") | dict.fromkeys(expected["fails"], "FAILED")
    surprises = [f"{name}: {got.get(name)}, not {want}" for name, want in wanted.items() if got.get(name) != want]
    assert not surprises, "\n".join([*surprises, output[-6000:]])
    assert len(verdicts) > 50, output[-6000:]
