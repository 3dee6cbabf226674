"""What one partition of dead letters is asked for."""

from runnel.broker.redrive import _asked
from runnel.model.calls import Redrive


def test_a_pace_and_a_limit_are_shared_out_and_a_look_takes_no_pace() -> None:
    both = [_asked(Redrive("q", rate_max=101, limit=3), "t", None, turn, 2) for turn in (0, 1)]
    assert [(one.rate_max, one.limit) for one in both] == [(51, 2), (51, 1)]
    assert _asked(Redrive("q", rate_max=1, dry_run=True), "t", None, 0, 1).rate_max == 0
