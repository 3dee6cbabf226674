"""The entrance: which commands there are, and how each ends.

    0 done   1 failed   2 wrong usage   130 interrupted   141 the reader of our output went away   143 terminated

Rule 1: only click and the standard library are imported here; a command's module is loaded when it is named.
Rule 2: every failure is one or two sentences on stderr: what happened, to what, what to do next. No traceback.
Rule 3: what is written here is its user's alone: data of brokers, ZooKeeper and pipelines, and their logs.
"""

import errno
import os
import sys
from typing import NoReturn

import click

from runnel.cli.command import LazyGroup
from runnel.cli.ending import Terminated
from runnel.model.errors import RunnelError

FAILED, INTERRUPTED, READER_GONE, TERMINATED = 1, 130, 141, 143
PRIVATE = 0o077  # taken from the rights of what commands write, and of what those write that they start
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # without a path it is stdout: only a broker writes other files

COMMANDS = {
    "serve": ("runnel.cli.serve:serve", "Start a broker."),
    "dev": ("runnel.cli.dev:dev", "Run a whole cluster on this machine."),
    "topic": ("runnel.cli.topic:topic", "Create, look at, change and delete topics."),
    "produce": ("runnel.cli.produce:produce", "Send messages from stdin, files or arguments."),
    "consume": ("runnel.cli.consume:consume", "Read messages to stdout."),
    "group": ("runnel.cli.group:group", "Look at consumer groups; move and delete them."),
    "queue": ("runnel.cli.queue:queue", "Queues: create them, send, receive, look at them, move them."),
    "dlq": ("runnel.cli.dlq:dlq", "Dead letters of queues: look at them, send them back, drop them."),
    "schedule": ("runnel.cli.schedule:schedule", "Messages that wait for their time: list, cancel, move."),
    "txn": ("runnel.cli.txn:txn", "Look at transactions; abort those that are stuck."),
    "sink": ("runnel.cli.sink:sink", "Sinks of exactly-once writers: look at them, forget them."),
    "pipeline": ("runnel.cli.pipeline:pipeline", "Jobs on Spark: the lake, replays, repairs, numbers, maps."),
    "cluster": ("runnel.cli.cluster:cluster", "Look at a cluster; move replicas and leaders."),
    "bench": ("runnel.cli.bench:bench", "Measure throughput and latency of a broker."),
    "simulate": ("runnel.cli.simulate:simulate", "Prove the broker against faults, in virtual time."),
    "completion": ("runnel.cli.shell:completion", "Print the completion script of a shell."),
    "version": ("runnel.cli.shell:version", "Print the version."),
}

EXAMPLES = """
runnel serve                                   start a broker
runnel topic create orders -p 3                create a topic
echo hello | runnel produce orders             send a message
runnel consume orders -e                       read all there is
runnel group describe billing                  see how far a group is
runnel queue create jobs                       message by message, with acknowledgement
"""


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        context.invoke(runnel.get_command(context, "version"))  # type: ignore[arg-type]  # the table has it
        context.exit()


class Root(LazyGroup):
    """All commands. Ends quietly what click would comment on."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except Terminated:
            ctx.exit(TERMINATED)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere
            ctx.exit(READER_GONE)
        except OSError as error:
            if error.errno in FULL and error.filename is None and ctx.invoked_subcommand != "serve":
                raise click.ClickException(f"stdout can't be written to: {error.strerror}") from None
            raise


runnel = Root(
    name="runnel",
    help="A distributed message queue. Kafka clients use it unchanged.",
    epilog="The broker's address is given by -b HOST:PORT or RUNNEL_BROKER. 'runnel COMMAND --help' says more.",
    table=COMMANDS,
    examples=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    params=[
        click.Option(
            ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
            help="Print the version.",
        )
    ],
)  # fmt: skip


def main() -> NoReturn:
    """Run the command named by the arguments, and exit with what became of it."""
    _open_closed_streams()
    os.umask(PRIVATE)
    try:
        code = runnel.main(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        _explain(error)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except (RunnelError, OSError) as error:
        _fail(error)


def _open_closed_streams() -> None:
    """Who closed stdin, stdout or stderr wants nothing of it; some file of ours would get its number otherwise."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # Python says so about those that were closed when it began
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _explain(error: click.ClickException) -> NoReturn:
    """Say what was wrong with the command, and where to read on."""
    from runnel.cli.output import note

    if type(error).__name__ == "NoArgsIsHelpError":  # of click 8.2: its message is the help itself
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    note(f"runnel: {error.format_message()}")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(f"'{error.ctx.command_path} --help' shows how it is used.", err=True)
    sys.exit(error.exit_code)


def _fail(error: Exception) -> NoReturn:
    """Say what went wrong; a broker that can't be reached is most often one that was not started."""
    from runnel.cli.output import note

    note("\n".join([f"runnel: {error}", *getattr(error, "__notes__", ())]))
    if type(error).__name__ == "BrokerUnreachable":
        click.echo("Start one with 'runnel serve', or name another with -b HOST:PORT or RUNNEL_BROKER.", err=True)
    sys.exit(FAILED)


if __name__ == "__main__":
    main()
