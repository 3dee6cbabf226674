"""Codecs: round trips, both shapes of snappy, zstd without a size, and bounds that hold against hostile bytes."""

import subprocess
import sys
from contextlib import suppress

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.model.errors import InvalidRecord
from runnel.model.limits import MIB
from runnel.record.compression import GROWTH_MAX, XERIAL_MAGIC, Compression, compress, decompress

CODECS = [codec for codec in Compression if codec is not Compression.NONE]


@settings(max_examples=60)
@given(st.sampled_from(Compression), st.binary(max_size=500), st.integers(1, 400))
def test_round_trip(codec: Compression, data: bytes, times: int) -> None:
    data *= times
    packed = compress(codec, data)
    assert decompress(codec, memoryview(packed), bytes_max=len(data)) == data
    if data and codec in CODECS:
        with pytest.raises(InvalidRecord):
            decompress(codec, packed, bytes_max=len(data) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_nothing_grows_by_more_than_its_format_can_say(codec: Compression) -> None:
    packed = compress(codec, bytes(16 * MIB))
    if codec is Compression.ZSTD:
        packed = zstandard.ZstdCompressor(level=19).compress(bytes(16 * MIB))
    assert len(packed) * GROWTH_MAX[codec] >= 16 * MIB


def test_snappy_comes_bare_from_librdkafka_and_boxed_from_java() -> None:
    data = b"runnel " * 20_000
    bare = bytes(cramjam.snappy.compress_raw(data))
    boxed = compress(Compression.SNAPPY, data)
    assert boxed.startswith(XERIAL_MAGIC)
    assert decompress(Compression.SNAPPY, bare, bytes_max=MIB) == data
    assert decompress(Compression.SNAPPY, boxed, bytes_max=MIB) == data


def test_zstd_frames_need_no_content_size() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    frame = stream.compress(b"runnel " * 1000) + stream.flush()
    assert zstandard.frame_content_size(frame) == -1
    assert decompress(Compression.ZSTD, frame, bytes_max=MIB) == b"runnel " * 1000
    with pytest.raises(InvalidRecord):
        decompress(Compression.ZSTD, frame, bytes_max=6999)


def test_lz4_is_written_with_independent_blocks_for_java() -> None:
    frame = compress(Compression.LZ4, bytes(range(256)) * 4096)
    assert lz4.frame.get_frame_info(frame)["block_linked"] is False


def test_lz4_of_any_flags_is_read() -> None:
    data = b"runnel " * 50_000
    for linked in (True, False):
        for checksum in (True, False):
            for sized in (True, False):
                frame = lz4.frame.compress(data, block_linked=linked, content_checksum=checksum, store_size=sized)
                assert decompress(Compression.LZ4, frame, bytes_max=MIB) == data


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_costs_no_more_than_the_bound(codec: Compression) -> None:
    bomb = compress(codec, bytes(32 * MIB))
    with pytest.raises(InvalidRecord):
        decompress(codec, bomb, bytes_max=MIB)


def test_a_claimed_size_allocates_nothing() -> None:
    claims = [
        (Compression.ZSTD, b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 7 + b"\x7f"),
        (Compression.SNAPPY, b"\xff\xff\xff\xff\x0f"),
        (Compression.SNAPPY, XERIAL_MAGIC + bytes(8) + b"\x7f\xff\xff\xff"),
        (Compression.SNAPPY, XERIAL_MAGIC + bytes(8) + b"\xff\xff\xff\xff"),
    ]
    for codec, claim in claims:
        with pytest.raises(InvalidRecord):
            decompress(codec, claim, bytes_max=MIB)


@pytest.mark.parametrize("codec", CODECS)
def test_every_cut_is_seen(codec: Compression) -> None:
    data = b"one two three four " * 20
    packed = compress(codec, data)
    for cut in range(len(packed)):
        with suppress(InvalidRecord):
            assert decompress(codec, packed[:cut], bytes_max=MIB) == b""  # snappy's box with no block in it


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_bytes_behind_the_frame_are_refused(codec: Compression) -> None:
    with pytest.raises(InvalidRecord):
        decompress(codec, compress(codec, b"one") + compress(codec, b"two"), bytes_max=MIB)


@settings(max_examples=300)
@given(st.sampled_from(CODECS), st.data())
def test_hostile_bytes_give_bytes_or_invalid_record(codec: Compression, data: st.DataObject) -> None:
    raw = bytearray(compress(codec, b"abcabcabd" * 30))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(InvalidRecord):
        assert len(decompress(codec, bytes(raw), bytes_max=4096)) <= 4096


@given(st.sampled_from(CODECS), st.binary(max_size=64))
def test_noise_gives_bytes_or_invalid_record(codec: Compression, raw: bytes) -> None:
    with suppress(InvalidRecord):
        assert len(decompress(codec, raw, bytes_max=4096)) <= 4096


def test_no_library_is_loaded_before_it_is_needed() -> None:
    code = "import sys, runnel.record.records; print({'lz4', 'zstandard', 'cramjam', 'isal'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"
