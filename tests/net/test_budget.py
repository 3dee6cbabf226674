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
    budget.withdraw(first)
    assert granted == ["second"]
    budget.withdraw(first)  # it is not there any more, and that is fine
    assert budget.used == 10


def test_large_ones_leave_a_quarter_to_the_small() -> None:
    budget = ByteBudget(100)
    granted: list[str] = []
    assert budget.reserve_large(70, lambda: None)
    assert not budget.take_large(10)
    assert budget.reserve(30, lambda: None)
    assert not budget.reserve(1, lambda: granted.append("small"))
    budget.release(70)
    assert granted == ["small"]


def test_one_large_asker_at_a_time_may_overdraw_so_that_all_can_not_wait_for_each_other() -> None:
    budget = ByteBudget(100)
    granted: list[str] = []

    def first() -> None:
        granted.append("first")

    def second() -> None:
        granted.append("second")

    assert budget.reserve_large(40, first)
    assert budget.reserve_large(30, second)
    assert budget.reserve_large(40, first)  # above the limit, but nobody else is
    assert not budget.reserve_large(30, second)
    assert budget.reserve_large(10, first)  # it does not stand behind the second, which waits for its end
    budget.arrived(first)
    assert granted == ["second"]
    budget.arrived(second)
    budget.release(150)
    assert budget.used == 0
