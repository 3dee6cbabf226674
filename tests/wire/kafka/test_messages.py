"""The classes: slots, defaults, comparison; and that the checked-in stub tells the truth about them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from runnel.wire.kafka import messages as m
from runnel.wire.kafka import notation
from runnel.wire.kafka.classes import Message, build


def test_a_class_is_built_once_and_nests_its_structs() -> None:
    assert m.FetchRequest is m.FetchRequest
    assert m.FetchRequest.FetchTopic is m.FetchRequest.FetchTopic
    assert m.FetchRequest.FetchTopic.__qualname__ == "FetchRequest.FetchTopic"


def test_threads_that_name_a_class_at_once_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(m), "FetchRequest", raising=False)
    both_build = threading.Barrier(2, timeout=60)

    def slow_build(schema: notation.Message) -> type[Message]:
        both_build.wait()
        return build(schema)

    monkeypatch.setattr(m, "build", slow_build)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: m.FetchRequest, range(2))
    assert one is other


def test_every_field_has_the_default_of_the_schema() -> None:
    request = m.FetchRequest()
    assert (request.cluster_id, request.replica_id, request.max_bytes) == (None, -1, 2_147_483_647)
    assert (request.topics, request.rack_id, request.replica_state) == ([], "", None)
    partition = m.FetchRequest.FetchPartition()
    assert (partition.replica_directory_id, partition.high_watermark) == (UUID(int=0), (1 << 63) - 1)
    assert m.CreateTopicsRequest().timeout_ms == 60_000
    assert m.DescribeConfigsResponse.DescribeConfigsResourceResult().read_only is False
    assert m.InitProducerIdResponse().producer_id == -1
    assert m.ConsumerGroupDescribeResponse.Member().assignment == m.ConsumerGroupDescribeResponse.Assignment()
    assert m.ProduceRequest.PartitionProduceData().records is None
    assert m.SaslAuthenticateRequest().auth_bytes == b""


def test_mutable_defaults_are_not_shared() -> None:
    one, other = m.FetchRequest(), m.FetchRequest()
    one.topics.append(m.FetchRequest.FetchTopic())
    assert other.topics == []
    member, another = m.ConsumerGroupDescribeResponse.Member(), m.ConsumerGroupDescribeResponse.Member()
    assert member.assignment is not another.assignment


def test_an_unknown_keyword_or_a_positional_value_is_refused() -> None:
    fetch: Any = m.FetchRequest
    with pytest.raises(TypeError, match="max_wait"):
        fetch(max_wait=5)
    with pytest.raises(TypeError):
        fetch(5)
    with pytest.raises(TypeError):
        fetch.FetchTopic(name="t")


def test_an_unknown_attribute_is_refused() -> None:
    request: Any = m.FetchRequest()
    with pytest.raises(AttributeError):
        request.max_wait = 5
    assert not hasattr(request, "__dict__")


def test_an_unknown_message_is_refused() -> None:
    everything: Any = m
    with pytest.raises(AttributeError, match="no message 'FetchRequests'"):
        everything.FetchRequests  # noqa: B018


def test_messages_compare_and_show_by_their_fields() -> None:
    topic = m.FetchRequest.ForgottenTopic
    assert topic(topic="a", partitions=[1]) == topic(topic="a", partitions=[1])
    assert topic(topic="a") != topic(topic="b")
    other: object = m.FetchRequest.FetchTopic()
    assert topic() != other
    wanted = f"FetchRequest.ForgottenTopic(topic='a', topic_id={UUID(int=0)!r}, partitions=[1])"
    assert repr(topic(topic="a", partitions=[1])) == wanted


def test_all_messages_are_listed() -> None:
    assert dir(m) == sorted(notation.message_names())
    for name in notation.message_names():
        assert getattr(m, name)() == getattr(m, name)()
