"""`runnel serve`: start a broker."""

import logging
import os
import sys
from pathlib import Path

import click

from runnel.broker.config import BrokerConfig, load, unknown_variables
from runnel.cli.command import Command
from runnel.model.errors import InvalidConfig
from runnel.server import Server, run

logger = logging.getLogger("runnel.server")

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"

EXAMPLES = """
runnel serve                                      on 127.0.0.1:9092 and :8080, data in ./data
runnel serve --data /var/lib/runnel --kafka 127.0.0.1:9192 --http 127.0.0.1:8081
runnel serve --store zookeeper://127.0.0.1:2181/runnel --broker-id 2 --kafka 127.0.0.1:9292 --data data2
RUNNEL_DEFAULT_PARTITIONS=4 runnel serve --config runnel.toml
"""


class WrongSetting(click.ClickException):
    """Wrong usage, of a setting that need not stand on the command line: its sentence says where it stands."""

    exit_code = 2


@click.command(
    cls=Command,
    examples=EXAMPLES,
    epilog="Settings can also stand in the environment (RUNNEL_KAFKA, RUNNEL_DATA ...) and in the file; flags win.",
)
@click.option("--data", metavar="DIR", help="Where everything is kept.  [default: data]")
@click.option("--kafka", metavar="HOST:PORT", help="Address of the Kafka door.  [default: 127.0.0.1:9092]")
@click.option("--http", metavar="HOST:PORT", help="Address of the HTTP door, or off.  [default: 127.0.0.1:8080]")
@click.option("--advertise", metavar="HOST", help="Host that clients are told to connect to.")
@click.option("--broker-id", metavar="N", help="This broker's number in its cluster.  [default: 1]")
@click.option("--store", metavar="WHERE", help="embedded, or zookeeper://HOST:PORT,...[/PATH].  [default: embedded]")
@click.option("--rack", metavar="NAME", help="Where this broker stands; replicas are spread over racks.")
@click.option("--config", "config_file", metavar="FILE", type=click.Path(path_type=Path), help="Settings as TOML.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.  [default: info]")
def serve(config_file: Path | None, **options: str | None) -> int:
    """Start a broker. It binds to loopback unless told otherwise, and stops cleanly on SIGTERM or Ctrl-C."""
    flags = {key.replace("_", "-"): value for key, value in options.items() if value is not None}
    try:
        config = load(flags, os.environ, _text_of(config_file), str(config_file))
    except InvalidConfig as error:
        raise WrongSetting(str(error)) from None
    _log_to_stderr(config)
    for variable, meant in unknown_variables(os.environ).items():
        hint = f"did you mean {meant}?" if meant else "'runnel serve --help' and the reference list what there is"
        logger.warning("environment variable %s is no setting, and is ignored: %s", variable, hint)
    return run(config, _announce)


def _text_of(file: Path | None) -> str | None:
    try:
        return None if file is None else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidConfig(f"--config {file} can't be read: {why}") from None


def _log_to_stderr(config: BrokerConfig) -> None:
    logging.basicConfig(level=config.log_level.upper(), format=LOG_FORMAT, stream=sys.stderr)


def _announce(server: Server) -> None:
    address, command = str(server.kafka), _command()
    click.echo(
        f"runnel: broker {server.broker.id} is ready\n"
        f"  kafka    {address}      (bootstrap.servers={address})\n"
        f"  http     {_http(server)}\n"
        f"  data     {server.broker.config.data}\n"
        f"  try      echo hello | {command} produce -b {address} greetings\n"
        f"           {command} consume -b {address} greetings -e"
    )
    sys.stdout.flush()


def _http(server: Server) -> str:
    if server.http is not None:
        return f"http://{server.http}      (what there is: http://{server.http}/docs)"
    if server.broker.config.http is None:
        return "off"
    return f"off: {server.broker.config.http} is taken; give another address with --http HOST:PORT"


def _command() -> str:
    """How this command was called, so that what we print can be typed."""
    called = Path(sys.argv[0])
    return os.path.relpath(called) if called.name == "runnel" and called.exists() else "runnel"
