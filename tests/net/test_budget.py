"""Who waits for bytes gets them in order, and nobody waits for ever."""

from runnel.net.budget import ByteBudget


def test_bytes_are_granted_in_the_order_of_asking() -> None:
    budget = ByteBudget(10)
    granted: list[str] = []
    assert budget.reserve(8, lambda: granted.append("a"))
    assert not budget.reserve(5, lambda: granted.append("b"))
    assert not budget.reserve(1, lambda: granted.append("c"))  # it would fit, but b was first
    budget.release(8)
    assert granted == ["b", "c"]
    assert budget.used == 6


def test_a_frame_above_the_whole_budget_passes_alone() -> None:
    budget = ByteBudget(10)
    granted: list[str] = []
    assert budget.reserve(1, lambda: None)
    assert not budget.reserve(100, lambda: granted.append("huge"))
    budget.release(1)
    assert granted == ["huge"]
    assert not budget.reserve(1, lambda: granted.append("small"))
    budget.release(100)
    assert granted == ["huge", "small"]


def test_who_leaves_the_line_lets_the_next_one_in() -> None:
    budget = ByteBudget(10)
    granted: list[str] = []

    def first() -> None:
        granted.append("first")

    assert budget.reserve(6, lambda: None)
    assert not budget.reserve(9, first)
    assert not budget.reserve(4, lambda: granted.append("second"))
    assert budget.withdraw(first)
    assert granted == ["second"]
    assert not budget.withdraw(first)
