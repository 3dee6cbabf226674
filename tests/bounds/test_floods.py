"""A small flood of each kind against a broker as a process; `make bounds` sends the large ones."""

from pathlib import Path

import pytest
from tests.bounds.floods import CASES, Case
from tests.bounds.rig import under

from runnel.testing.process import BrokerProcess


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_a_flood_costs_time_and_no_memory(case: Case, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", environment=case.environment) as broker:
        under(case.small, broker, case.kept_mb)
        seen = under(case.small, broker, case.kept_mb)  # the second time nothing is new: what grows is kept
        assert seen.grown_mb < case.grown_mb, seen
        assert seen.after_mb - seen.before.now < case.kept_mb, seen
        assert seen.served, seen
        assert not seen.failed, seen
