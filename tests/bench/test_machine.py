import os

from bench.machine import TICKS, cpu_of, parse_stat, resident_bytes


def test_times_are_found_behind_a_name_with_blanks_and_brackets() -> None:
    fields = ["S", *("0" for _ in range(10)), "250", "50", "0"]
    assert parse_stat(f"42 (a) b (c) {' '.join(fields)}") == (250 / TICKS, 50 / TICKS)


def test_a_process_has_used_cpu_time_and_memory() -> None:
    used = cpu_of(os.getpid())
    assert used.total_s > 0
    assert (used - used).total_s == 0
    assert resident_bytes(os.getpid()) > 1_000_000
