"""Frames: headers, the protocol's special cases, what is refused, and what is never copied."""

import struct
import subprocess
import sys
from typing import Any
from uuid import UUID

import pytest

from runnel.model.errors import ClientError, InvalidRequest, UnsupportedVersion
from runnel.wire.kafka import codec, decoder, encoder, notation, primitives
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import API, Api


def frame_of(parts: list[codec.Buffer]) -> memoryview:
    """The frame as a reader gets it: the size checked and taken off."""
    whole = b"".join(parts)
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    return memoryview(whole)[4:]


def request_frame(api_key: int, version: int, message: Any, client_id: str | None = "me") -> tuple[memoryview, int]:
    frame = frame_of(codec.encode_request(api_key, version, 7, client_id, message))
    return frame, codec.read_request_header(frame)[1]


def produce_request(records: codec.Buffer | None = b"records") -> m.ProduceRequest:
    partition = m.ProduceRequest.PartitionProduceData(index=3, records=records)
    topic = m.ProduceRequest.TopicProduceData(name="t", topic_id=UUID(int=9), partition_data=[partition])
    return m.ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])


EVERY_API = [(key, version) for key, api in API.items() for version in range(api.min_version, api.max_version + 1)]


# --- headers
@pytest.mark.parametrize(("api_key", "version"), EVERY_API)
def test_a_request_and_its_response_come_back(api_key: int, version: int) -> None:
    request, response = getattr(m, API[api_key].name + "Request")(), getattr(m, API[api_key].name + "Response")()
    frame, position = request_frame(api_key, version, request)
    assert codec.read_request_header(frame)[0] == (api_key, version, 7, "me")
    assert codec.decode_request(api_key, version, frame, position) == request
    frame = frame_of(codec.encode_response(api_key, version, 8, response))
    assert codec.decode_response(api_key, version, frame) == (8, response)


@pytest.mark.parametrize("client_id", [None, "", "me", "ä" * 90])
@pytest.mark.parametrize(("version", "header_version"), [(8, 1), (9, 2)])
def test_the_request_header_is_as_the_schema_says(client_id: str | None, version: int, header_version: int) -> None:
    """Version 2 belongs to flexible requests, and even there client_id is not compact."""
    header = m.RequestHeader(request_api_key=0, request_api_version=version, correlation_id=7, client_id=client_id)
    encode, _ = encoder.compile_encoder(notation.message("RequestHeader"), header_version)
    frame, position = request_frame(Api.PRODUCE, version, m.ProduceRequest(), client_id)
    assert frame[:position] == b"".join(encode(header))
    assert codec.read_request_header(frame)[0].client_id == client_id


def test_tagged_fields_of_a_request_header_are_skipped() -> None:
    head = struct.pack(">hhih", Api.PRODUCE, 9, 7, -1)
    header, position = codec.read_request_header(memoryview(head + b"\x01\x05\x02xx" + b"body"))
    assert header == (0, 9, 7, None)
    assert position == len(head) + 5


def test_the_api_versions_response_has_the_old_header_in_every_version() -> None:
    for version in range(5):
        frame = frame_of(codec.encode_response(Api.API_VERSIONS, version, 7, m.ApiVersionsResponse(error_code=35)))
        assert frame[:6] == struct.pack(">ih", 7, 35)
        assert codec.decode_response(Api.API_VERSIONS, version, frame)[1].error_code == 35


def test_a_flexible_response_has_tagged_fields_in_its_header() -> None:
    assert frame_of(codec.encode_response(Api.METADATA, 8, 7, m.MetadataResponse()))[4:8] == bytes(4)  # throttle time
    assert frame_of(codec.encode_response(Api.METADATA, 9, 7, m.MetadataResponse()))[4:9] == bytes(5)
    extended = struct.pack(">i", 7) + b"\x01\x03\x01x" + struct.pack(">ihB", 5, 0, 0)
    assert codec.decode_response(Api.HEARTBEAT, 4, memoryview(extended)) == (7, m.HeartbeatResponse(throttle_time_ms=5))


@pytest.mark.parametrize("head", [b"", b"\0", struct.pack(">hhi", 0, 9, 7), struct.pack(">hhih", 0, 9, 7, 5) + b"abc"])
def test_a_header_that_ends_early_is_malformed(head: bytes) -> None:
    with pytest.raises(codec.Malformed):
        codec.read_request_header(memoryview(head))


def test_a_header_whose_tagged_field_is_longer_than_the_frame_is_malformed() -> None:
    with pytest.raises(codec.Malformed, match="longer than the frame"):
        codec.read_request_header(memoryview(struct.pack(">hhih", Api.PRODUCE, 9, 7, -1) + b"\x01\x05\x03ab"))


def test_a_header_with_a_length_below_minus_one_or_without_utf8_is_malformed() -> None:
    for tail in (struct.pack(">h", -2), struct.pack(">h", 2) + b"\xff\xfe"):
        with pytest.raises(codec.Malformed):
            codec.read_request_header(memoryview(struct.pack(">hhi", 0, 3, 7) + tail))


# --- what the schema does not have
@pytest.mark.parametrize(("api_key", "version"), [(18, 99), (0, 2), (0, 14), (0, -1), (4, 0), (999, 0), (-1, 0)])
def test_an_unknown_api_or_version_is_named_and_its_header_can_still_be_read(api_key: int, version: int) -> None:
    frame = memoryview(struct.pack(">hhihB", api_key, version, 7, 1, ord("c")) + b"\xff\xff\xff")
    header, position = codec.read_request_header(frame)
    assert header == (api_key, version, 7, "c")
    with pytest.raises(codec.Unsupported) as refused:
        codec.decode_request(api_key, version, frame, position)
    assert (refused.value.api_key, refused.value.version) == (api_key, version)
    assert isinstance(refused.value, UnsupportedVersion)
    with pytest.raises(codec.Unsupported):
        codec.encode_response(api_key, version, 7, m.ApiVersionsResponse())
    with pytest.raises(codec.Unsupported):
        codec.encode_request(api_key, version, 7, None, m.ApiVersionsRequest())
    with pytest.raises(codec.Unsupported):
        codec.decode_response(api_key, version, memoryview(bytes(9)))


def test_the_refusal_says_what_there_is() -> None:
    assert str(codec.Unsupported(0, 2)) == "Produce has the versions 3 to 13, not 2"
    assert str(codec.Unsupported(999, 0)) == "the Kafka protocol has no API with the key 999"


def test_malformed_is_the_fault_of_the_client() -> None:
    assert issubclass(codec.Malformed, InvalidRequest)
    assert issubclass(codec.Malformed, ClientError)


# --- records are never copied
@pytest.mark.parametrize("version", range(3, 14))
def test_records_read_are_slices_of_the_frame(version: int) -> None:
    frame, position = request_frame(Api.PRODUCE, version, produce_request())
    records = codec.decode_request(Api.PRODUCE, version, frame, position).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame.obj
    assert bytes(records) == b"records"


def test_bytes_read_are_slices_of_the_frame() -> None:
    frame, position = request_frame(Api.SASL_AUTHENTICATE, 2, m.SaslAuthenticateRequest(auth_bytes=b"secret"))
    auth_bytes = codec.decode_request(Api.SASL_AUTHENTICATE, 2, frame, position).auth_bytes
    assert auth_bytes.obj is frame.obj
    assert auth_bytes == b"secret"


def test_records_of_a_writable_frame_can_be_changed_in_place() -> None:
    whole = bytearray(b"".join(codec.encode_request(Api.PRODUCE, 9, 7, "me", produce_request())))
    frame = memoryview(whole)[4:]
    position = codec.read_request_header(frame)[1]
    decoded = codec.decode_request(Api.PRODUCE, 9, frame, position)
    decoded.topic_data[0].partition_data[0].records[:] = b"RECORDS"
    assert b"RECORDS" in whole


@pytest.mark.parametrize("version", range(4, 19))
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_records_written_are_the_very_objects_given(version: int, kind: type) -> None:
    batches = [kind(bytes([number]) * 1000) for number in range(3)]
    partitions = [m.FetchResponse.PartitionData(records=batch) for batch in batches]
    partitions += [m.FetchResponse.PartitionData(records=empty) for empty in (None, b"")]
    topic = m.FetchResponse.FetchableTopicResponse(topic="t", partitions=partitions)
    parts = codec.encode_response(Api.FETCH, version, 7, m.FetchResponse(responses=[topic]))
    assert [part for part in parts if any(part is batch for batch in batches)] == batches
    assert len(parts) == 7  # a part before and after each: everything else is joined, empty records are no part
    _, read = codec.decode_response(Api.FETCH, version, frame_of(parts))
    assert [partition.records for partition in read.responses[0].partitions] == [*batches, None, b""]


def test_a_message_without_records_is_one_part() -> None:
    assert len(codec.encode_response(Api.METADATA, 12, 7, m.MetadataResponse(cluster_id="c"))) == 1


# --- versions
def test_a_field_that_a_version_lacks_is_not_sent_and_reads_as_its_default() -> None:
    for version, wanted in ((12, ("t", UUID(int=0))), (13, ("", UUID(int=9)))):
        frame, position = request_frame(Api.PRODUCE, version, produce_request())
        topic = codec.decode_request(Api.PRODUCE, version, frame, position).topic_data[0]
        assert (topic.name, topic.topic_id) == wanted


def test_null_and_empty_are_kept_apart() -> None:
    for version in (3, 9):
        for records in (None, b""):
            frame, position = request_frame(Api.PRODUCE, version, produce_request(records))
            message = codec.decode_request(Api.PRODUCE, version, frame, position)
            assert message.topic_data[0].partition_data[0].records == records
            assert message.transactional_id is None
    no_topics: list[m.MetadataRequest.MetadataRequestTopic] = []
    for topics in (None, no_topics):
        frame, position = request_frame(Api.METADATA, 12, m.MetadataRequest(topics=topics))
        assert codec.decode_request(Api.METADATA, 12, frame, position).topics == topics


def test_a_nullable_struct_is_marked_by_one_byte() -> None:
    request = m.DescribeTopicPartitionsRequest()
    frame, position = request_frame(Api.DESCRIBE_TOPIC_PARTITIONS, 0, request)
    assert bytes(frame[-2:]) == b"\xff\0"
    assert codec.decode_request(Api.DESCRIBE_TOPIC_PARTITIONS, 0, frame, position).cursor is None
    request.cursor = m.DescribeTopicPartitionsRequest.Cursor(topic_name="t", partition_index=4)
    frame, position = request_frame(Api.DESCRIBE_TOPIC_PARTITIONS, 0, request)
    assert bytes(frame[-9:]) == b"\x01\x02t" + struct.pack(">ibb", 4, 0, 0)
    assert codec.decode_request(Api.DESCRIBE_TOPIC_PARTITIONS, 0, frame, position) == request
    wrong = bytearray(frame)
    wrong[-9] = 2
    with pytest.raises(codec.Malformed, match="cursor begins with 2"):
        codec.decode_request(Api.DESCRIBE_TOPIC_PARTITIONS, 0, memoryview(wrong), position)


# --- tagged fields
def test_known_tagged_fields_come_back() -> None:
    state = m.FetchRequest.ReplicaState(replica_id=2, replica_epoch=5)
    request = m.FetchRequest(cluster_id="c", replica_state=state)
    frame, position = request_frame(Api.FETCH, 15, request)
    assert codec.decode_request(Api.FETCH, 15, frame, position) == request


def test_a_tagged_struct_with_nothing_but_defaults_is_not_sent_and_one_not_sent_is_none() -> None:
    with_defaults, _ = request_frame(Api.FETCH, 15, m.FetchRequest(replica_state=m.FetchRequest.ReplicaState()))
    without, position = request_frame(Api.FETCH, 15, m.FetchRequest())
    assert with_defaults == without
    assert codec.decode_request(Api.FETCH, 15, without, position).replica_state is None


@pytest.mark.parametrize("version", [9, 13])
def test_unknown_tagged_fields_are_skipped_in_every_struct(version: int) -> None:
    frame, position = request_frame(Api.PRODUCE, version, produce_request(b"xyz"))
    plain = bytes(frame)
    assert plain[-3:] == b"\0\0\0"  # of the partition, the topic and the request
    unknown = b"\x02" + b"\x05\x03abc" + b"\x81\x01\x00"  # tag 5 with 3 bytes, tag 129 with none
    for extended in (plain[:-1] + unknown, plain[:-2] + unknown + b"\0", plain[:-3] + unknown * 3):
        assert codec.decode_request(Api.PRODUCE, version, memoryview(extended), position) == produce_request_at(version)


def produce_request_at(version: int) -> m.ProduceRequest:
    request = produce_request(b"xyz")
    if version < 13:
        request.topic_data[0].topic_id = UUID(int=0)
    else:
        request.topic_data[0].name = ""
    return request


def test_unknown_tagged_fields_are_skipped_between_known_ones() -> None:
    frame, position = request_frame(Api.FETCH, 12, m.FetchRequest(cluster_id="c"))
    assert bytes(frame[-5:]) == b"\x01\x00\x02\x02c"
    extended = bytes(frame[:-5]) + b"\x03\x00\x02\x02c" + b"\x07\x04junk" + b"\x80\x80\x01\x01!"
    assert codec.decode_request(Api.FETCH, 12, memoryview(extended), position).cluster_id == "c"


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (b"\xff\xff\xff\xff\x07", "tagged fields has"),  # two thousand million of them
        (b"\x01", "out of bounds"),  # one, and the frame ends
        (b"\x01\x05\x7f", "a tagged field has the length 127"),
        (b"\x01\x05\xff\xff\xff\xff\x07", "a tagged field has the length 2147483647"),
        (b"\x01\x00\x03\x02c!", "cluster_id has another length"),
        (b"\x01\x00\x01\x02c", "cluster_id has another length"),
        (b"\x01\xff\xff\xff\xff\xff\x01", "varint"),
    ],
)
def test_tagged_fields_that_lie_about_their_size_are_malformed(section: bytes, reason: str) -> None:
    for cluster_id in (None, "c"):
        frame, position = request_frame(Api.FETCH, 12, m.FetchRequest(cluster_id=cluster_id))
        cut = len(frame) - (1 if cluster_id is None else 5)
        with pytest.raises(codec.Malformed, match=reason):
            codec.decode_request(Api.FETCH, 12, memoryview(bytes(frame[:cut]) + section), position)


# --- bounds
def test_a_count_beyond_the_bytes_left_is_refused_before_anything_is_made() -> None:
    legacy = struct.pack(">hhi", -1, -1, 1000) + struct.pack(">i", 2_000_000_000)
    compact = b"\0" + struct.pack(">hi", -1, 1000) + b"\xff\xff\xff\xff\x07"
    for version, body in ((3, legacy), (9, compact)):
        with pytest.raises(codec.Malformed, match=r"topic_data has \d+ elements"):
            codec.decode_request(Api.PRODUCE, version, memoryview(body), 0)
    one_too_many = struct.pack(">i", 11) + bytes(2) * 10  # an empty string takes 2 bytes
    with pytest.raises(codec.Malformed, match="topics has 11 elements"):
        codec.decode_request(Api.METADATA, 0, memoryview(one_too_many), 0)
    with pytest.raises(codec.Malformed, match="mechanisms has 2000000000 elements"):
        codec.decode_response(Api.SASL_HANDSHAKE, 1, memoryview(struct.pack(">ihi", 7, 0, 2_000_000_000)))


def test_a_count_below_null_is_refused() -> None:
    with pytest.raises(codec.Malformed, match="topics has -2 elements"):
        codec.decode_request(Api.METADATA, 1, memoryview(struct.pack(">i", -2)), 0)
    with pytest.raises(codec.Malformed, match="topics has -1 elements"):  # null where it is not allowed
        codec.decode_request(Api.METADATA, 0, memoryview(struct.pack(">i", -1)), 0)


def test_a_length_beyond_the_bytes_left_is_refused() -> None:
    with pytest.raises(codec.Malformed, match="name has the length 3"):
        codec.decode_request(Api.METADATA, 0, memoryview(struct.pack(">ih", 1, 3) + b"ab"), 0)
    with pytest.raises(codec.Malformed, match="auth_bytes has the length 4"):
        codec.decode_request(Api.SASL_AUTHENTICATE, 2, memoryview(b"\x04ab"), 0)
    with pytest.raises(codec.Malformed, match="user_data has the length 3"):
        codec.decode_versioned(m.ConsumerProtocolAssignment, struct.pack(">hii", 0, 0, 3) + b"ab")


def test_a_null_string_where_none_is_allowed_is_malformed() -> None:
    with pytest.raises(codec.Malformed, match="name has the length"):
        codec.decode_request(Api.METADATA, 0, memoryview(struct.pack(">ih", 1, -1)), 0)
    with pytest.raises(codec.Malformed, match="name has the length"):
        codec.decode_request(Api.METADATA, 9, memoryview(b"\x02\x00\x00\x00\x00\x00\x00"), 0)


def test_the_elements_of_one_request_are_bounded_over_all_its_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [
        m.ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[m.ListOffsetsRequest.ListOffsetsPartition()] * 20)
    ]
    frame, position = request_frame(Api.LIST_OFFSETS, 5, m.ListOffsetsRequest(topics=topics * 5))
    monkeypatch.setattr(primitives, "ELEMENTS_MAX", 104)
    schema = notation.message("ListOffsetsRequest")
    with pytest.raises(codec.Malformed, match="partitions has 20 elements"):
        decoder.compile_decoder(schema, 5)[0](frame, position)
    monkeypatch.setattr(primitives, "ELEMENTS_MAX", 105)
    decoder.compile_decoder(schema, 5)[0](frame, position)


def test_the_tagged_fields_of_one_struct_are_bounded() -> None:
    frame, position = request_frame(Api.HEARTBEAT, 4, m.HeartbeatRequest())
    unknown = b"\x05\x00"
    most = bytes(frame[:-1]) + b"\x7f" + unknown * 127
    assert codec.decode_request(Api.HEARTBEAT, 4, memoryview(most), position) == m.HeartbeatRequest()
    more = bytes(frame[:-1]) + b"\x80\x01" + unknown * 128
    with pytest.raises(codec.Malformed, match="tagged fields has 128 elements"):
        codec.decode_request(Api.HEARTBEAT, 4, memoryview(more), position)
    head = struct.pack(">hhih", Api.HEARTBEAT, 4, 7, -1)
    with pytest.raises(codec.Malformed, match="tagged fields"):
        codec.read_request_header(memoryview(head + b"\x80\x01" + unknown * 128))


def test_a_string_above_the_most_is_refused_both_ways() -> None:
    most = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="x" * 32_767)])
    frame, position = request_frame(Api.METADATA, 12, most)
    assert codec.decode_request(Api.METADATA, 12, frame, position) == most
    more = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="x" * 32_768)])
    with pytest.raises(ValueError, match="a string of 32768 bytes") as refused:
        codec.encode_request(Api.METADATA, 12, 7, None, more)
    assert refused.value.__notes__ == ["while writing Metadata v12"]
    body = b"\x02" + bytes(16) + b"\x81\x80\x02" + b"x" * 32_768 + b"\0\0\0\0"
    with pytest.raises(codec.Malformed, match="a string of 32768 bytes"):
        codec.decode_request(Api.METADATA, 12, memoryview(body), 0)


def test_bytes_behind_a_request_are_ignored_because_librdkafka_sends_some() -> None:
    frame, position = request_frame(Api.HEARTBEAT, 4, m.HeartbeatRequest(group_id="g"))
    request = codec.decode_request(Api.HEARTBEAT, 4, memoryview(bytes(frame) + b"xxx"), position)
    assert request == m.HeartbeatRequest(group_id="g")


def test_bytes_behind_a_response_are_malformed() -> None:
    frame = b"".join(codec.encode_response(Api.HEARTBEAT, 4, 7, m.HeartbeatResponse()))[4:]
    with pytest.raises(codec.Malformed, match="2 bytes follow the end of the answer to Heartbeat v4"):
        codec.decode_response(Api.HEARTBEAT, 4, memoryview(frame + b"xx"))


def test_text_that_is_not_utf8_is_malformed() -> None:
    with pytest.raises(codec.Malformed):
        codec.decode_request(Api.METADATA, 0, memoryview(struct.pack(">ih", 1, 2) + b"\xff\xfe"), 0)


def test_a_value_that_does_not_fit_is_an_error_that_says_where() -> None:
    with pytest.raises(struct.error) as refused:
        codec.encode_response(Api.HEARTBEAT, 4, 7, m.HeartbeatResponse(error_code=1 << 20))
    assert refused.value.__notes__ == ["while writing Heartbeat v4"]


# --- data inside of other messages
@pytest.mark.parametrize("version", range(4))
def test_versioned_data_comes_back(version: int) -> None:
    subscription = m.ConsumerProtocolSubscription(topics=["a", "b"], user_data=b"mine")
    data = codec.encode_versioned(subscription, version)
    assert data[:2] == struct.pack(">h", version)
    assert codec.decode_versioned(m.ConsumerProtocolSubscription, data) == (version, subscription)


def test_a_newer_version_of_data_is_read_as_the_newest_known() -> None:
    data = codec.encode_versioned(m.ConsumerProtocolAssignment(user_data=b"mine"), 3)
    version, read = codec.decode_versioned(m.ConsumerProtocolAssignment, struct.pack(">h", 9) + data[2:] + b"more")
    assert version == 9
    assert read.user_data == b"mine"


@pytest.mark.parametrize("data", [b"", b"\0", struct.pack(">h", -1), struct.pack(">hi", 0, 5), bytes(2) + b"\x7f" * 9])
def test_versioned_data_that_is_wrong_is_malformed(data: bytes) -> None:
    with pytest.raises(codec.Malformed):
        codec.decode_versioned(m.ConsumerProtocolSubscription, data)


# --- looking inside
def test_the_compiled_source_can_be_read() -> None:
    text = codec.source(Api.PRODUCE, 9, "request")
    assert "def decode(frame, p):" in text
    assert "def encode(message):" in text
    assert "unpack_hiB(frame, p)" in text  # acks, timeout and the number of topics in one call


def test_importing_the_codec_reads_and_builds_nothing() -> None:
    """The command line and the broker's start depend on it."""
    code = (
        "import sys, runnel.wire.kafka.codec as codec;"
        "heavy = {'runnel.wire.kafka.' + name for name in ('notation', 'classes', 'messages', 'decoder', 'encoder')};"
        "sys.exit(bool(heavy & set(sys.modules) or {'dataclasses', 'inspect', 'asyncio', 'json'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
