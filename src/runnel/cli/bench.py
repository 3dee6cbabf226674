"""`runnel bench`: what a broker can do, seen from one client.

Throughput is measured with batches that are encoded once and sent again and again: so it is the broker that is
measured, not this client's encoding. Latency is that of whole messages, one by one or at a steady rate.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from runnel.cli.command import Group
from runnel.cli.options import broker_option, complete_topics, compress_option, json_option, size

DEFAULT_TOPIC = "runnel-bench"
F = TypeVar("F", bound=Callable[..., Any])


@click.group(
    cls=Group,
    examples="""
runnel bench produce                      a million messages of 1 KiB
runnel bench consume                      read them again
runnel bench latency --rate 1000          how long one message takes
""",
)
def bench() -> None:
    """Measure throughput and latency of a broker.

    The topic is created if it is not there (with one partition), and is kept.
    """


def _topic_argument(function: F) -> F:
    return click.argument("topic", default=DEFAULT_TOPIC, shell_complete=complete_topics)(function)


_ACKS = click.Choice(["0", "1", "all"])


# --- produce
@bench.command(
    examples="""
runnel bench produce
runnel bench produce clicks -n 5000000 -s 100 --acks 1
runnel bench produce --batch 256k -z lz4 --json
"""
)
@_topic_argument
@click.option(
    "-n", "--count", metavar="N", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="How many."
)
@click.option(
    "-s",
    "--size",
    "message_bytes",
    metavar="SIZE",
    type=size,
    default="1k",
    show_default=True,
    help="Bytes of each message.",
)
@click.option(
    "--batch",
    "batch_bytes",
    metavar="SIZE",
    type=size,
    default="512k",
    show_default=True,
    help="Bytes of each batch, before compression.",
)
@click.option("-a", "--acks", type=_ACKS, default="all", show_default=True, help="Whose acknowledgement is awaited.")
@compress_option
@click.option(
    "-i",
    "--in-flight",
    metavar="N",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Requests that wait for their answer.",
)
@json_option
@broker_option
def produce(
    topic: str,
    count: int,
    message_bytes: int,
    batch_bytes: int,
    acks: str,
    compress: str,
    in_flight: int,
    as_json: bool,
    broker: str,
) -> None:
    """Send COUNT messages as fast as the broker takes them."""
    from runnel.cli.bench_run import Throughput, produce_run
    from runnel.cli.session import run
    from runnel.record.compression import Compression

    plan = Throughput(topic, count, message_bytes, batch_bytes, acks, Compression[compress.upper()], in_flight)
    _print(run(broker, lambda cluster: produce_run(cluster, plan)), as_json)


# --- consume
@bench.command(
    examples="""
runnel bench consume
runnel bench consume clicks -n 5000000
"""
)
@_topic_argument
@click.option("-n", "--count", metavar="N", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option("--decode", is_flag=True, help="Also decode each message, as an application would.")
@json_option
@broker_option
def consume(topic: str, count: int | None, decode: bool, as_json: bool, broker: str) -> None:
    """Read what a topic holds as fast as the broker gives it."""
    from runnel.cli.bench_run import consume_run
    from runnel.cli.session import run

    _print(run(broker, lambda cluster: consume_run(cluster, topic, count, decode)), as_json)


# --- latency
@bench.command(
    examples="""
runnel bench latency                          one after the other
runnel bench latency --rate 1000 -n 10000     a thousand a second
runnel bench latency --acks 1
"""
)
@_topic_argument
@click.option(
    "-n", "--count", metavar="N", type=click.IntRange(min=1), default=2_000, show_default=True, help="How many."
)
@click.option(
    "-s",
    "--size",
    "message_bytes",
    metavar="SIZE",
    type=size,
    default="1k",
    show_default=True,
    help="Bytes of each message (at least 8).",
)
@click.option("-r", "--rate", metavar="N", type=click.IntRange(min=1), help="Messages a second.  [default: one by one]")
@click.option("-a", "--acks", type=_ACKS, default="all", show_default=True, help="Whose acknowledgement is awaited.")
@json_option
@broker_option
def latency(
    topic: str, count: int, message_bytes: int, rate: int | None, acks: str, as_json: bool, broker: str
) -> None:
    """Measure how long a message takes: to be acknowledged, and to arrive at a consumer.

    At a fixed RATE, a message's time begins when it was due, so that a stall counts for all it delayed.
    """
    from runnel.cli.bench_run import Pace, latency_run
    from runnel.cli.session import run

    plan = Pace(topic, count, max(8, message_bytes), rate, acks)
    _print(run(broker, lambda cluster: latency_run(cluster, plan)), as_json)


# --- what is printed
def _print(result: dict[str, Any], as_json: bool) -> None:
    from runnel.cli.output import print_json

    if as_json:
        print_json(result)
        return
    click.echo(headline(result))
    for name, key in (("acknowledged", "ack_ms"), ("end to end", "arrival_ms")):
        if key in result:
            spread = "   ".join(f"{quantile} {value:.2f}" for quantile, value in result[key].items())
            click.echo(f"{name:<14}{spread}   ms")


def headline(result: dict[str, Any]) -> str:
    count, seconds = result["messages"], result["seconds"]
    return (
        f"{count:,} messages of {result['message_bytes']:,} bytes in {seconds:.2f} s: "
        f"{result['messages_per_s']:,.0f} messages/s, {result['mb_per_s']:,.1f} MB/s"
    )
