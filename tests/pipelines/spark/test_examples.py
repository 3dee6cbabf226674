"""Each example for Spark shows what it promises. They share the tests' session: one of their own would take long."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runnel.testing.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[3] / "examples"

SHOWS = {
    "dedup_stream.py": [
        r"round 1: 99 messages sent, 50 payments kept, each once: True",
        r"round 2: 99 messages sent, 50 payments kept, each once: True",
    ],
    "enrich_stream.py": [
        r'enriched: 15 orders, the first: {"id":\d+,"customer":\d,"name":"\w+","country":"..","amount":\d+\.0}',
        r'unknown: 5 orders, the first: {"id":3,"customer":4,"amount":30.0}',
    ],
}


@pytest.mark.parametrize("example", sorted(SHOWS))
def test_it_shows_what_it_promises(
    spark: "SparkSession", broker: BrokerProcess, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = spec_from_file_location(example.removesuffix(".py"), EXAMPLES / example)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(spark, broker.kafka)
    shown = capsys.readouterr().out
    for pattern in SHOWS[example]:
        assert re.search(pattern, shown), shown


def test_none_is_forgotten() -> None:
    assert {path.name for path in EXAMPLES.glob("*_stream.py")} == set(SHOWS)
