"""Sorted runs of (hash of key, offset): what is written is found, merged runs say the same, and rot is noticed."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runnel.log import runs
from runnel.log.runs import PAGE, Rotten, Run
from runnel.shell.disk import RealDisk


@contextmanager
def disk_in(path: Path) -> Iterator[RealDisk]:
    disk = RealDisk(str(path))
    disk.make_dir("k")
    try:
        yield disk
    finally:
        disk.close()


def put(disk: RealDisk, first: int, hashes: list[int], epoch: int = 1) -> Run:
    """A run over offsets from `first` on whose keys have these hashes."""
    entries = sorted(one << 32 | at for at, one in enumerate(hashes))
    return runs.whole(runs.write(disk, "k", first, first + len(hashes), epoch, iter([entries])))


def found(disk: RealDisk, run: Run, key_hash: int, offset: int = 0, limit: int = 10**9) -> list[int]:
    file = disk.open(run.path)
    try:
        return runs.find(run, key_hash, offset, limit, file.read)
    finally:
        file.close()


def test_offsets_of_a_hash_are_found_in_order_across_pages(tmp_path: Path) -> None:
    hashes = [random.Random(1).randrange(5) for _ in range(4 * PAGE + 7)]
    with disk_in(tmp_path) as disk:
        run = put(disk, 1000, hashes)
        for key_hash in range(6):
            wanted = [1000 + at for at, one in enumerate(hashes) if one == key_hash]
            assert found(disk, run, key_hash) == wanted
            assert found(disk, run, key_hash, 1000 + 3 * PAGE) == [one for one in wanted if one >= 1000 + 3 * PAGE]
            assert found(disk, run, key_hash, 0, 10) == wanted[:10]
        assert found(disk, run, 3, run.end) == []


def test_the_first_and_the_last_hash_are_found(tmp_path: Path) -> None:
    with disk_in(tmp_path) as disk:
        run = put(disk, 0, [0, 2**32 - 1, 7])
        assert [found(disk, run, one) for one in (0, 2**32 - 1, 7, 6)] == [[0], [1], [2], []]


def test_an_empty_run_says_that_nothing_is_there(tmp_path: Path) -> None:
    with disk_in(tmp_path) as disk:
        run = runs.whole(runs.write(disk, "k", 5, 9, 3, iter([])))
        assert runs.load(disk, run.path) == run
        assert found(disk, run, 1) == []


def test_a_run_is_read_again_as_it_was_written(tmp_path: Path) -> None:
    with disk_in(tmp_path) as disk:
        run = put(disk, 77, list(range(3 * PAGE)), epoch=9)
        assert runs.load(disk, run.path) == run


def test_a_merged_run_says_what_its_parts_said(tmp_path: Path) -> None:
    chance = random.Random(2)
    with disk_in(tmp_path) as disk:
        parts, first = [], 10
        for size in (1, 3 * PAGE, 0, PAGE, 5000):
            parts.append(put(disk, first, [chance.choice((1, 2, chance.randrange(2**32))) for _ in range(size)]))
            first += size
        merged = runs.whole(runs.merge(disk, "k", parts))
        assert (merged.first, merged.end, merged.count) == (10, first, first - 10)
        for key_hash in (1, 2, 3):
            assert found(disk, merged, key_hash) == [one for part in parts for one in found(disk, part, key_hash)]


def test_what_was_merged_is_preferred_to_its_parts_after_a_crash(tmp_path: Path) -> None:
    with disk_in(tmp_path) as disk:
        parts = [put(disk, first, [1, 2, 3]) for first in (0, 3, 6)]
        merged = runs.whole(runs.merge(disk, "k", parts[:2]))
        (tmp_path / "k" / "00000000000000000009-00000000000000000012.keys.tmp").write_bytes(b"half")
        assert runs.load_all(disk, "k") == [merged, parts[2]]
        assert disk.list("k") == [Path(merged.path).name, Path(parts[2].path).name]


def test_what_does_not_go_on_is_removed(tmp_path: Path) -> None:
    with disk_in(tmp_path) as disk:
        kept = put(disk, 0, [1, 2, 3])
        put(disk, 5, [1, 2, 3])
        assert runs.load_all(disk, "k") == [kept]


@pytest.mark.parametrize("at", [0, PAGE * 8 + 1, -70, -5])
def test_rot_is_noticed_wherever_it_is(tmp_path: Path, at: int) -> None:
    with disk_in(tmp_path) as disk:
        run = put(disk, 0, [1] * (2 * PAGE))
        path = tmp_path / run.path
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(Rotten):
            found(disk, runs.load(disk, run.path), 1)


@pytest.mark.parametrize("size", [0, 10, 100])
def test_a_run_that_was_cut_short_is_no_run(tmp_path: Path, size: int) -> None:
    with disk_in(tmp_path) as disk:
        run = put(disk, 0, [1] * 50)
        path = tmp_path / run.path
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(Rotten):
            runs.load(disk, run.path)
