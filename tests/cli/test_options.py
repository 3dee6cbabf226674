"""Types of values that options take."""

import click
import pytest

from runnel.cli.options import setting, size


@pytest.mark.parametrize(("text", "number"), [("1000", 1000), ("64k", 65536), ("1MiB", 2**20), ("2g", 2**31), (7, 7)])
def test_sizes(text: str, number: int) -> None:
    assert size(text) == number


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1t", "k"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a number of bytes"):
        size(text)


def test_settings() -> None:
    assert setting("a=b=c") == ("a", "b=c")
    with pytest.raises(click.BadParameter, match="KEY=VALUE"):
        setting("a")
