"""Options as values: names, units, and what is said about those that are wrong."""

import pickle

import pytest

from runnel.pipelines.connector.given import Given, is_given
from runnel.pipelines.errors import BadOption, UnknownOption

KNOWN = ("group.id", "isolation", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay", "includeHeaders")


def given(**options: str) -> Given:
    return Given(options, KNOWN)


def test_names_are_known_in_any_case_and_by_the_names_of_kafkas_source() -> None:
    options = Given({"MAXROWSPERTRIGGER": "5", "kafka.bootstrap.servers": "a:1, b:2"}, KNOWN)
    assert options.count("maxOffsetsPerTrigger") == 5
    assert options.brokers() == ("a:1", "b:2")
    assert "maxBytesPerTrigger" not in options
    assert is_given({"subscribe": "t"}, "SUBSCRIBE")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("maxOffsetPerTrigger", "did you mean 'maxOffsetsPerTrigger'?"),
        ("maxrowspertriger", "did you mean 'maxRowsPerTrigger'?"),
        ("kafka.ssl.truststore.location", "leave it out"),
        ("zzz", "use one of group.id"),
    ],
)
def test_a_name_that_nothing_listens_to_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UnknownOption, match=hint.replace("?", r"\?")):
        Given({name: "1"}, KNOWN)


def test_one_option_under_two_names_must_say_the_same() -> None:
    Given({"maxRowsPerTrigger": "5", "maxOffsetsPerTrigger": "5"}, KNOWN)
    with pytest.raises(BadOption, match="is the same option"):
        Given({"maxRowsPerTrigger": "5", "maxOffsetsPerTrigger": "6"}, KNOWN)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("10b", 10), ("2k", 2048), ("64 MB", 64 << 20), ("1G", 1 << 30), ("1t", 1 << 40)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert given(maxBytesPerTrigger=text).size("maxBytesPerTrigger") == size


@pytest.mark.parametrize(("text", "span"), [("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("2 h", 7_200_000)])
def test_spans_have_units(text: str, span: int) -> None:
    assert given(maxTriggerDelay=text).span_ms("maxTriggerDelay", "1s") == span


def test_what_is_not_given_has_its_default() -> None:
    options = given()
    assert options.count("maxOffsetsPerTrigger") is None
    assert options.size("maxBytesPerTrigger") is None
    assert options.span_ms("maxTriggerDelay", "1s") == 1_000
    assert options.flag("includeHeaders", True)
    assert options.one_of("isolation", ("read_committed", "read_uncommitted")) == "read_committed"
    assert options.brokers() == ("127.0.0.1:9092",)


def test_what_can_not_be_read_is_refused_by_name() -> None:
    options = Given(
        {
            "maxOffsetsPerTrigger": "0", "maxBytesPerTrigger": "1x", "maxTriggerDelay": "15", "includeHeaders": "yes",
            "isolation": "dirty", "runnel.brokers": " ,",
        },
        KNOWN,
    )  # fmt: skip
    for read in (
        lambda: options.count("maxOffsetsPerTrigger"),
        lambda: options.size("maxBytesPerTrigger"),
        lambda: options.span_ms("maxTriggerDelay", "1s"),
        lambda: options.flag("includeHeaders", True),
        lambda: options.one_of("isolation", ("read_committed",)),
        options.brokers,
    ):
        with pytest.raises(BadOption):
            read()


def test_a_bad_option_survives_its_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(BadOption("minPartitions", "x", "use a number")))
    assert (error.name, error.value, error.allowed) == ("minPartitions", "x", "use a number")
    assert str(error) == "option minPartitions='x' can't be used: use a number"
