"""Faults that somebody asks for are no more than Runnel promises to survive."""

import pytest

from runnel.model.topic_config import FlushMode
from runnel.testing.swarm import flush_mode_beside


@pytest.mark.parametrize("faults", [("power", "kill"), ("power-all",), ("cut", "sync-lost"), ("power", "rot")])
def test_power_losses_beside_what_else_ends_a_broker_need_messages_on_disk(faults: tuple[str, ...]) -> None:
    assert flush_mode_beside(faults) is FlushMode.COMMIT


@pytest.mark.parametrize("faults", [(), ("kill", "rot"), ("power",), ("power", "cut", "elect")])
def test_else_any_mode_survives(faults: tuple[str, ...]) -> None:
    assert flush_mode_beside(faults) is None
