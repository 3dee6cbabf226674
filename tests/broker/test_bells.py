"""A bell wakes one who waits, the first, and no ring is lost."""

import asyncio

from runnel.broker.bells import Bells, Sleeper

LONG_S = 60.0


def test_a_ring_wakes_the_one_who_has_waited_longest() -> None:
    async def scenario() -> None:
        bells = Bells()
        with bells.waiting("q") as first, bells.waiting("q") as second, bells.waiting("other") as other:
            assert bells.ring("q")
            assert (first.woken, second.woken, other.woken) == (True, False, False)
            assert await first.sleep(LONG_S)
            assert bells.ring("q")
            assert await second.sleep(LONG_S)
            assert not bells.ring("q")

    asyncio.run(scenario())


def test_who_goes_away_without_having_looked_passes_the_ring_on() -> None:
    async def scenario() -> None:
        bells = Bells()
        with bells.waiting("q") as second:
            bells.remove("q", second)
            with bells.waiting("q"):
                bells.add("q", second)
                bells.ring("q")
                assert not second.woken
            assert second.woken

    asyncio.run(scenario())


def test_who_looks_again_hears_what_rings_from_then_on() -> None:
    async def scenario() -> None:
        bells = Bells()
        with bells.waiting("q") as sleeper:
            bells.ring("q")
            assert not bells.ring("q")
            bells.again("q", sleeper)
            assert not sleeper.woken
            bells.ring("q")
            assert await sleeper.sleep(LONG_S)

    asyncio.run(scenario())


def test_nobody_sleeps_longer_than_it_wants_or_is_of_use() -> None:
    async def scenario() -> None:
        bells = Bells()
        with bells.waiting("q") as sleeper:
            assert not await sleeper.sleep(0.001)
            sleeping = asyncio.ensure_future(sleeper.sleep(LONG_S))
            await asyncio.sleep(0)
            sleeper.end()
            assert not await sleeping
        assert "q" not in bells

    asyncio.run(scenario())


def test_where_the_first_comes_and_the_last_goes_is_told() -> None:
    told: list[str] = []
    bells = Bells(lambda queue: told.append("+" + queue), lambda queue: told.append("-" + queue))
    with bells.waiting("q"):
        other = Sleeper()
        bells.add("q", other)
        bells.remove("q", other)
        bells.remove("q", other)
        assert (told, len(bells)) == (["+q"], 1)
        bells.ring("q")
        assert told == ["+q", "-q"]
    assert (told, len(bells)) == (["+q", "-q"], 0)


def test_everybody_can_be_told_to_look() -> None:
    bells = Bells()
    with bells.waiting("a") as one, bells.waiting("a") as two, bells.waiting("b") as three:
        bells.ring_all("a")
        assert (one.woken, two.woken, three.woken) == (True, True, False)
        bells.ring_all()
        assert three.woken
