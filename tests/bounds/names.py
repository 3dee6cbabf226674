"""Names that a client makes up: topics that it asks for, partitions that it would like to read."""

from uuid import UUID

from tests.bounds.rig import Answer, Kafka, ask_at_once, statuses

from runnel.model.ids import TopicId
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

METADATA_V, FETCH_V = 9, 13
ASKED = m.MetadataRequest.MetadataRequestTopic


def topics_asked_for(broker: BrokerProcess, requests: int, names: int) -> str:
    made = 0
    with Kafka(broker.kafka) as kafka:
        for number in range(requests):
            asked = [ASKED(name=f"made-up-{number}-{n}") for n in range(names)]
            request = m.MetadataRequest(topics=asked, allow_auto_topic_creation=True)
            answer = kafka.ask(Api.METADATA, METADATA_V, request)
            made += sum(topic.error_code == 0 for topic in answer.topics)
    return f"{requests} x Metadata of {names} topics that are not there: {made} were made"


def partitions_of_a_session(broker: BrokerProcess, clients: int, partitions: int) -> str:
    """Partitions of a topic that is not there, to be remembered."""
    wanted = [m.FetchRequest.FetchPartition(partition=n, partition_max_bytes=1) for n in range(partitions)]
    topics = [m.FetchRequest.FetchTopic(topic_id=TopicId(UUID(int=7)), partitions=wanted)]
    request = m.FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1, topics=topics, session_epoch=0)

    def one(_: int) -> Answer:
        with Kafka(broker.kafka) as kafka:
            answer = kafka.ask(Api.FETCH, FETCH_V, request)
        return Answer(answer.error_code, {}, b"1" * bool(answer.session_id))

    answers = [answer for _ in range(clients) for answer in ask_at_once(1, one)]
    kept = sum(len(answer.content) for answer in answers)
    return f"{clients} fetches of {partitions} unknown partitions: codes {statuses(answers)}, {kept} sessions kept"
