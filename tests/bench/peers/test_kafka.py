from pathlib import Path

from bench.peers.kafka import Kafka, properties

from bench.peers import HOST, Flush


def test_every_address_is_loopback() -> None:
    settings = dict(line.split("=", 1) for line in properties(Path("data"), 1111, 2222).splitlines())
    assert settings["listeners"] == f"PLAINTEXT://{HOST}:1111,CONTROLLER://{HOST}:2222"
    assert settings["advertised.listeners"] == f"PLAINTEXT://{HOST}:1111"
    assert settings["controller.quorum.voters"] == f"1@{HOST}:2222"
    assert Path(settings["log.dirs"]).is_absolute()


def test_each_guarantee_is_a_topic_setting_and_has_words() -> None:
    kafka = Kafka()
    assert [kafka.topic_config(flush) for flush in Flush] == [{}, {"flush.ms": "1000"}, {"flush.messages": "1"}]
    assert all(kafka.guarantee(flush) for flush in Flush)
