"""When a message that was not accepted is delivered again."""

from runnel.model.queue_config import QueueConfig


def backoff_ms(config: QueueConfig, attempts: int, jitter: float) -> int:
    """The pause after so many deliveries: exponential, and of its last half a random share.

    Consumers that failed together do not come back together, and nobody comes back at once.
    """
    highest = config.retry_backoff_max_ms
    steps = min(attempts - 1, 1_000)  # beyond, a float has no number for it
    try:
        pause = min(config.retry_backoff_ms * config.retry_backoff_multiplier**steps, highest)
    except OverflowError:
        pause = highest
    return round(pause * (0.5 + 0.5 * jitter))


def rounded_up(moment: int, length_ms: int) -> int:
    """A moment at the end of something that long, later by less than a hundredth of it.

    So leases and waits that began about together end together, and are one run.
    """
    grain = max(1, length_ms >> 7)
    return -(-moment // grain) * grain
