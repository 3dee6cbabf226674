"""The settings of queues."""

import pytest

from runnel.model.errors import InvalidConfig
from runnel.model.limits import topic_name_problem
from runnel.model.queue_config import (
    ALIASES,
    DEFAULTS,
    SETTINGS,
    Consumers,
    Expired,
    Order,
    Overflow,
    QueueConfig,
    Start,
    config_of,
    parse_setting,
)
from runnel.model.topic_config import shown
from runnel.queues.retry import backoff_ms


def test_every_default_is_allowed_and_reads_as_it_is_shown() -> None:
    for setting in SETTINGS.values():
        value = getattr(DEFAULTS, setting.name.replace(".", "_"))
        assert parse_setting(setting.name, shown(value)) == value


def test_settings_are_read() -> None:
    config = DEFAULTS.with_overrides(
        {"order": "key", "expired": "dead", "consumers": "single", "overflow": "refuse", "lease.ms": "5"}
    )
    assert (config.order, config.expired, config.consumers) == (Order.KEY, Expired.DEAD, Consumers.SINGLE)
    assert (config.overflow, config.lease_ms) == (Overflow.REFUSE, 5)


def test_kafkas_names_mean_the_same() -> None:
    config = DEFAULTS.with_overrides({"share.record.lock.duration.ms": "15000", "share.delivery.count.limit": "3"})
    assert (config.lease_ms, config.attempts_max) == (15_000, 3)
    assert set(ALIASES.values()) <= set(SETTINGS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lease.ms", "0"), ("lease.ms", "soon"), ("attempts.max", "-1"), ("order", "random"), ("lanes", "0"),
        ("breaker.percent", "101"), ("retry.backoff.multiplier", "0.5"), ("topic", ""), ("topic", "a/b"),
        ("dead.letter.topic", "no spaces"), ("filter", "x" * 5_000),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_refused_with_what_is(name: str, text: str) -> None:
    with pytest.raises(InvalidConfig, match=f"queue setting {name} can't be .*: allowed is"):
        DEFAULTS.with_overrides({name: text})


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="unknown queue setting 'lease'"):
        DEFAULTS.with_overrides({"lease": "1"})


def test_topics_are_named_after_the_queue() -> None:
    assert DEFAULTS.topic_of("q") == "q"
    assert DEFAULTS.dead_topic_of("q") == "q.dead"
    assert DEFAULTS.retry_topic_of("q") == "q.retry"
    assert DEFAULTS.with_overrides({"dead.letter.topic": ""}).dead_topic_of("q") == ""
    assert DEFAULTS.with_overrides({"order": "key"}).retry_topic_of("q") == ""


def test_groups_whose_name_no_topic_can_have_get_dead_letters_all_the_same() -> None:
    assert DEFAULTS.dead_topic_of("mailers") == "mailers.dead"
    assert DEFAULTS.dead_topic_of("my group/ä") == "my_group__-e8d35b0aeb.dead"
    long = DEFAULTS.dead_topic_of("x" * 1_000)
    assert long.startswith("x" * 200)
    assert long.endswith(".dead")
    assert topic_name_problem(long) is None
    assert QueueConfig(dead_letter_topic="").dead_topic_of("my group") == ""
    assert QueueConfig(dead_letter_topic="graveyard").dead_topic_of("my group") == "graveyard"


def test_no_two_groups_have_the_same_topic() -> None:
    names = ["a.b", "a_b", "a/b", "a b", "a%b", "x" * 300, "x" * 301]
    for topic_of in (DEFAULTS.dead_topic_of, DEFAULTS.retry_topic_of):
        assert len({topic_of(name) for name in names}) == len(names)


def test_a_share_group_that_is_no_queue_has_kafkas_defaults() -> None:
    mere = config_of(frozenset({("attempts.max", "3")}))
    assert (mere.start, mere.retry_backoff_ms, mere.retry_topic, mere.attempts_max) == (Start.LATEST, 0, "", 3)
    queue = config_of(frozenset({("topic", "t")}))
    assert (queue.start, queue.retry_backoff_ms, queue.retry_topic_of("q")) == (Start.EARLIEST, 1_000, "q.retry")


def test_a_webhook_tries_for_hours_with_growing_pauses() -> None:
    hook = config_of(frozenset({"topic": "t", "webhook.url": "http://example.com"}.items()))
    for jitter, hours in ((0.0, 7), (1.0, 15)):
        pauses = [backoff_ms(hook, attempts, jitter) for attempts in range(1, hook.attempts_max)]
        assert pauses == sorted(pauses)
        assert round(sum(pauses) / 3_600_000) == hours
    assert pauses[0] == 1_000
    own = config_of(frozenset({"topic": "t", "webhook.url": "http://example.com", "attempts.max": "3"}.items()))
    assert own.attempts_max == 3
    for no_hook in ({"topic": "t"}, {"topic": "t", "webhook.url": ""}):
        assert config_of(frozenset(no_hook.items())).attempts_max == DEFAULTS.attempts_max
