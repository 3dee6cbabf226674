"""Makes the archives of the Java clients' classes, unless they are there. `make test` runs this:

python -m tests.compat.keep_classes
"""

import tempfile
from pathlib import Path

from tests.compat import setup_clients
from tests.compat.java_classes import archive, java_command
from tests.compat.stage import Stage, settle, texts

from runnel.testing.process import BrokerProcess


def main() -> None:
    possible = [version for version in setup_clients.JAVA_VERSIONS if not setup_clients.missing(f"java-{version}")]
    wanted = [version for version in possible if archive(version).is_missing]
    if wanted:
        print("runnel: keeping the classes of the Java clients for quicker tests (once; seconds, 50 MB)", flush=True)
        with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder, "data")) as broker:
            for version in wanted:
                _live(version, Stage(broker.kafka, Path(folder)))


def _live(version: str, stage: Stage) -> None:
    """What most tests have a client do."""
    with archive(version).making() as options:
        agent = stage.start(f"java-{version}", [*java_command(version, options), "Agent"])
        topic = stage.topic(partitions=2)
        agent.produce(topic, texts("a", 10, partitions=2))
        agent.read(topic, partitions=2)
        agent.join(stage.name(), topic)
        settle(agent, counts=(2,))
        agent.leave()
        agent.close()


if __name__ == "__main__":
    main()
