import os
import subprocess
import sys

from bench.machine import TICKS, cpu_of, cpu_of_tree, kept_to_one_core, parse_stat, resident_bytes


def test_times_are_found_behind_a_name_with_blanks_and_brackets() -> None:
    fields = ["S", *("0" for _ in range(10)), "250", "50", "0"]
    assert parse_stat(f"42 (a) b (c) {' '.join(fields)}") == (250 / TICKS, 50 / TICKS)


def test_a_process_has_used_cpu_time_and_memory() -> None:
    used = cpu_of(os.getpid())
    assert used.total_s > 0
    assert (used - used).total_s == 0
    assert resident_bytes(os.getpid()) > 1_000_000


def test_the_time_of_all_that_descends_from_this_process_is_counted() -> None:
    before = cpu_of_tree()
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive = cpu_of_tree() - before
        child.communicate(b"\n")
    assert alive >= 0.25
    assert cpu_of_tree() - before >= alive - 1e-6, "and what ended is not forgotten"  # sums of floats


def test_who_is_kept_to_one_core_is_let_go_again() -> None:
    before = os.sched_getaffinity(0)
    with kept_to_one_core():
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
