"""runnel serve: start a broker."""

import logging
import os
import sys
from pathlib import Path

import click

from runnel.broker.config import BrokerConfig, load
from runnel.model.errors import RunnelError
from runnel.server import Server, run

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


@click.command(
    epilog="Settings can also stand in the environment (RUNNEL_KAFKA, RUNNEL_DATA ...) and in the file; flags win."
)
@click.option("--data", metavar="DIR", help="Where everything is kept.  [default: data]")
@click.option("--kafka", metavar="HOST:PORT", help="Address of the Kafka door.  [default: 127.0.0.1:9092]")
@click.option("--advertise", metavar="HOST", help="Host that clients are told to connect to.")
@click.option("--broker-id", metavar="N", help="This broker's number in its cluster.  [default: 1]")
@click.option("--config", "config_file", metavar="FILE", type=click.Path(path_type=Path), help="Settings as TOML.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.  [default: info]")
def serve(config_file: Path | None, **options: str | None) -> None:
    """\b
    runnel serve                                  a broker on 127.0.0.1:9092, data in ./data
    runnel serve --data /var/lib/runnel --kafka 127.0.0.1:9192
    RUNNEL_DEFAULT_PARTITIONS=4 runnel serve --config runnel.toml

    Start a broker. It binds to loopback unless told otherwise, and stops cleanly on SIGTERM or Ctrl-C.
    """
    flags = {key.replace("_", "-"): value for key, value in options.items() if value is not None}
    try:
        config = load(flags, os.environ, _text_of(config_file), str(config_file))
        _log_to_stderr(config)
        code = run(config, _announce)
    except RunnelError as error:
        click.echo(f"runnel: {error}", err=True)
        sys.exit(1)
    sys.exit(code)


def _text_of(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text()
    except OSError as error:
        raise click.BadParameter(f"{file} can't be read: {error.strerror}", param_hint="--config") from None


def _log_to_stderr(config: BrokerConfig) -> None:
    logging.basicConfig(level=config.log_level.upper(), format=LOG_FORMAT, stream=sys.stderr)


def _announce(server: Server) -> None:
    address = str(server.kafka)
    click.echo(
        f"runnel: broker {server.broker.id} is ready\n"
        f"  kafka    {address}      bootstrap.servers={address}\n"
        f"  data     {server.broker.config.data}\n"
        f"  try      runnel produce -b {address} hello   |   runnel consume -b {address} hello -e"
    )
    sys.stdout.flush()
