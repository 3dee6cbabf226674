"""Hostile bytes: whatever arrives, reading gives a message or Malformed, in bounded time and memory."""

import random
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.hostile import EXECS, mutated

from runnel.wire.kafka import codec, notation
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import API, Api

EVERY_API = [(key, version) for key, api in API.items() for version in range(api.min_version, api.max_version + 1)]
RANDOM: dict[str, Callable[[random.Random], Any]] = {
    "bool": lambda chance: chance.random() < 0.5,
    "int8": lambda chance: chance.randrange(-128, 128),
    "int16": lambda chance: chance.randrange(-32_768, 32_768),
    "uint16": lambda chance: chance.randrange(65_536),
    "int32": lambda chance: chance.randrange(-(1 << 31), 1 << 31),
    "int64": lambda chance: chance.randrange(-(1 << 63), 1 << 63),
    "float64": lambda chance: chance.random(),
    "uuid": lambda chance: UUID(int=chance.getrandbits(128)),
    "string": lambda chance: "ä" * chance.choice([0, 1, 3, 90]),
    "bytes": lambda chance: chance.randbytes(chance.choice([0, 1, 3, 150])),
    "records": lambda chance: chance.randbytes(chance.choice([0, 1, 3, 150])),
}


def random_message(name: str, version: int, chance: random.Random) -> Any:
    """A message with every field of the version set at random."""
    schema = notation.message(name)
    return random_struct(schema, schema.root, getattr(m, name), version, chance)


def random_struct(
    schema: notation.Message, struct: notation.Struct, cls: Any, version: int, chance: random.Random
) -> Any:
    root = getattr(m, schema.name)

    def value(field: notation.Field) -> Any:
        if field.is_struct:
            return random_struct(schema, schema.structs[field.type], getattr(root, field.type), version, chance)
        return RANDOM[field.type](chance)

    given = {}
    for field in struct.fields:
        if field.at(version) and not (version in field.nullable and chance.random() < 0.2):
            given[field.name] = [value(field) for _ in range(chance.randrange(3))] if field.array else value(field)
    return cls(**given)


def decode_whole_request(frame: memoryview) -> Any:
    header, position = codec.read_request_header(frame)
    return codec.decode_request(header.api_key, header.api_version, frame, position)


def read_request(frame: bytes | bytearray) -> None:
    with suppress(codec.Malformed, codec.Unsupported):
        decode_whole_request(memoryview(frame))


def read_response(api_key: int, version: int, frame: bytes | bytearray) -> None:
    with suppress(codec.Malformed):
        codec.decode_response(api_key, version, memoryview(frame))


@pytest.mark.parametrize("api_key", API)
def test_a_frame_cut_short_anywhere_is_malformed(api_key: int) -> None:
    api = API[api_key]
    chance = random.Random(api_key)
    for version in {api.min_version, api.max_version}:
        request = random_message(api.name + "Request", version, chance)
        frame = b"".join(codec.encode_request(api_key, version, 7, "me", request))[4:]
        for end in cuts(len(frame)):
            with pytest.raises(codec.Malformed):
                decode_whole_request(memoryview(frame)[:end])
        response = random_message(api.name + "Response", version, chance)
        frame = b"".join(codec.encode_response(api_key, version, 7, response))[4:]
        for end in cuts(len(frame)):
            with pytest.raises(codec.Malformed):
                codec.decode_response(api_key, version, memoryview(frame)[:end])


def cuts(size: int) -> list[int]:
    """Every length below, or a sample of them for a long frame."""
    return sorted({*range(min(size, 60)), *range(0, size, max(1, size // 100)), *range(max(0, size - 20), size)})


@pytest.mark.parametrize("api_key", API)
def test_mutated_frames_are_read_or_malformed(api_key: int) -> None:
    api = API[api_key]
    chance = random.Random(api_key)
    for version in range(api.min_version, api.max_version + 1):
        request = random_message(api.name + "Request", version, chance)
        response = random_message(api.name + "Response", version, chance)
        whole_request = b"".join(codec.encode_request(api_key, version, 7, "me", request))[4:]
        whole_response = b"".join(codec.encode_response(api_key, version, 7, response))[4:]
        for _ in range(EXECS // 2 // len(EVERY_API)):
            read_request(mutated(whole_request, chance))
            read_response(api_key, version, mutated(whole_response, chance))


@settings(max_examples=150)
@given(st.sampled_from(EVERY_API), st.binary(max_size=200))
def test_random_bodies_are_read_or_malformed(api: tuple[int, int], body: bytes) -> None:
    read_request(struct.pack(">hhih", *api, 7, -1) + body)
    read_response(*api, struct.pack(">i", 7) + body)


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_random_frames_are_read_or_refused(frame: bytes) -> None:
    read_request(frame)
    for data in (m.ConsumerProtocolSubscription, m.ConsumerProtocolAssignment):
        with suppress(codec.Malformed):
            codec.decode_versioned(data, frame)


@pytest.mark.parametrize("body", [b"\x7f\xff\xff\xff" * 50_000, b"\xff" * 200_000, bytes(200_000), b"\x02" * 200_000])
def test_memory_stays_in_proportion_to_the_frame(body: bytes) -> None:
    for api_key in (Api.PRODUCE, Api.FETCH, Api.METADATA, Api.CREATE_TOPICS, Api.OFFSET_COMMIT):
        version = API[api_key].max_version
        read_request(struct.pack(">hhihB", api_key, version, 7, -1, 0) + bytes(64))  # compiled before measuring
        tracemalloc.start()
        read_request(struct.pack(">hhihB", api_key, version, 7, -1, 0) + body)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 60 * len(body)
