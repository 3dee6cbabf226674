from pathlib import Path

from bench.peers import HOST, Flush
from bench.peers.kafka import Kafka, Node, properties


def test_every_address_is_loopback() -> None:
    node = Node(1, Path("data"), 1111, 2222)
    settings = dict(line.split("=", 1) for line in properties(node, [node]).splitlines())
    assert settings["listeners"] == f"PLAINTEXT://{HOST}:1111,CONTROLLER://{HOST}:2222"
    assert settings["advertised.listeners"] == f"PLAINTEXT://{HOST}:1111"
    assert settings["controller.quorum.voters"] == f"1@{HOST}:2222"
    assert Path(settings["log.dirs"]).is_absolute()


def test_each_guarantee_is_a_topic_setting_and_has_words() -> None:
    kafka = Kafka()
    assert [kafka.topic_config(flush) for flush in Flush] == [{}, {"flush.ms": "1000"}, {"flush.messages": "1"}]
    assert all(kafka.guarantee(flush) for flush in Flush)


def test_the_nodes_of_a_cluster_know_each_other_and_keep_copies() -> None:
    nodes = [Node(number, Path(str(number)), 1000 + number, 2000 + number) for number in (1, 2, 3)]
    settings = dict(line.split("=", 1) for line in properties(nodes[1], nodes).splitlines())
    assert settings["node.id"] == "2"
    assert settings["controller.quorum.voters"] == f"1@{HOST}:2001,2@{HOST}:2002,3@{HOST}:2003"
    assert settings["offsets.topic.replication.factor"] == "3"
    assert settings["transaction.state.log.min.isr"] == "2"
