"""The entrance: help, exit codes, and how commands end."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from tests.cli.calls import COMMAND, Call, process

from runnel.cli.command import LazyGroup
from runnel.cli.main import runnel
from runnel.testing.process import BrokerProcess


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


OURS = [path for path in commands(runnel) if path != ("serve",)]


@pytest.mark.parametrize("path", [(), *OURS], ids=" ".join)
def test_help_begins_with_examples(call: Call, path: tuple[str, ...]) -> None:
    out = call(*path, "--help").out
    assert out.startswith("Examples:\n  ")
    assert f"Usage: runnel {' '.join(path)}".rstrip() in out


@pytest.mark.parametrize("path", [(), *OURS], ids=" ".join)
def test_the_one_line_helps_are_those_of_the_commands(path: tuple[str, ...]) -> None:
    command: click.Command = runnel
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    if isinstance(command, LazyGroup):
        for name, (_, text) in command._table.items():
            sub = command.get_command(click.Context(command), name)
            assert sub is not None
            assert (sub.help or "").strip(), name
            assert text.endswith(".")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['runnel', 'topic', '--help']\nfrom runnel.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'asyncio', 'rich', 'uvloop', 'msgspec', 'json', 'runnel.client', 'runnel.wire', 'runnel.record'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_versions_agree(call: Call) -> None:
    assert call("version").out == call("--version").out
    assert call("version").out.startswith("runnel ")


def test_a_mistyped_command_is_guessed(call: Call) -> None:
    assert "did you mean 'topic'?" in call("topci", code=2).err
    assert "there are create, ls, describe" in call("topic", "frobnicate", code=2).err


def test_wrong_usage_is_2_and_says_where_to_read_on(call: Call) -> None:
    ended = call("topic", "create", code=2)
    assert (ended.out, "'runnel topic create --help' shows how it is used." in ended.err) == ("", True)


@pytest.mark.parametrize("path", [(), ("topic",)], ids=["runnel", "topic"])
def test_a_group_alone_prints_its_help(call: Call, path: tuple[str, ...]) -> None:
    ended = call(*path, code=2)
    assert ended.err.startswith("Examples:\n")
    assert ended.err == call(*path, "--help").out


def test_a_broker_that_is_away(call: Call) -> None:
    err = call("topic", "ls", "-b", "127.0.0.1:1", code=1).err
    assert err == (
        "runnel: broker 127.0.0.1:1 can't be reached (connection refused): see whether it runs and the address is "
        "right\nStart one with 'runnel serve', or name another with -b HOST:PORT or RUNNEL_BROKER.\n"
    )


def test_an_address_that_is_none(call: Call) -> None:
    assert "'host:port' is not the address of a broker" in call("topic", "ls", "-b", "host:port", code=2).err


def ended(running: "subprocess.Popen[bytes]") -> int:
    """The exit code; a command that does not end is ended."""
    try:
        return running.wait(30)
    except subprocess.TimeoutExpired:
        running.kill()
        raise


def test_ctrl_c_ends_quietly_with_130(broker: BrokerProcess, name: str) -> None:
    process(broker.kafka, "produce", name, "-m", "one")
    with subprocess.Popen(
        [*COMMAND, "consume", name, "-b", broker.kafka], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        line = running.stdout.readline()
        running.send_signal(signal.SIGINT)
        assert (line, ended(running), running.stderr.read()) == (b"one\n", 130, b"")


def test_ctrl_c_commits_what_was_printed(broker: BrokerProcess, name: str) -> None:
    process(broker.kafka, "produce", name, "-m", "one")
    with subprocess.Popen(
        [*COMMAND, "consume", name, "-g", name, "-b", broker.kafka], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        line = running.stdout.readline()
        running.send_signal(signal.SIGINT)
        assert (line, ended(running), running.stderr.read()) == (b"one\n", 130, b"")
    assert process(broker.kafka, "consume", name, "-g", name, "-e").stdout == b""


@pytest.mark.parametrize("interrupts", [signal.SIG_DFL, signal.SIG_IGN], ids=["in front", "behind &"])
def test_sigterm_commits_what_was_printed_and_leaves(
    broker: BrokerProcess, name: str, interrupts: signal.Handlers
) -> None:
    process(broker.kafka, "produce", name, "-m", "one")
    before = signal.signal(signal.SIGINT, interrupts)  # which a new process inherits
    running = subprocess.Popen(
        [*COMMAND, "consume", name, "-g", name, "-b", broker.kafka], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    signal.signal(signal.SIGINT, before)
    with running:
        assert running.stdout is not None
        assert running.stderr is not None
        line = running.stdout.readline()
        running.send_signal(signal.SIGTERM)
        assert (line, ended(running), running.stderr.read()) == (b"one\n", 143, b"")
    assert json.loads(process(broker.kafka, "group", "describe", name, "--json").stdout)["members"] == []
    assert process(broker.kafka, "consume", name, "-g", name, "-e").stdout == b""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", ["topic ls", "produce"], ids=["topic ls", "produce"])
def test_streams_that_are_closed_are_as_good_as_empty(
    broker: BrokerProcess, name: str, closed: str, arguments: str
) -> None:
    topic = f" {name}" if arguments == "produce" else ""
    command = f"{shlex.join(COMMAND)} {arguments}{topic} -b {broker.kafka} {closed}"
    done = subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert done.returncode == 0


def test_a_full_stdout_is_named(broker: BrokerProcess, name: str) -> None:
    process(broker.kafka, "produce", name, "-m", "one")
    for arguments in (["topic", "ls"], ["consume", name, "-e"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [*COMMAND, *arguments, "-b", broker.kafka], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
            )
        expected = b"runnel: stdout can't be written to: No space left on device\n"
        assert (done.returncode, done.stderr) == (1, expected)


def test_a_reader_that_goes_away_ends_it_quietly(broker: BrokerProcess, name: str) -> None:
    process(broker.kafka, "produce", name, stdin=b"some line\n" * 50_000)
    with subprocess.Popen(
        [*COMMAND, "consume", name, "-b", broker.kafka], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        line = running.stdout.readline()
        running.stdout.close()
        assert (line, ended(running), running.stderr.read()) == (b"some line\n", 141, b"")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(call: Call, shell: str) -> None:
    assert "_RUNNEL_COMPLETE" in call("completion", shell).out


def test_completion_knows_commands_and_topics(broker: BrokerProcess, name: str) -> None:
    process(broker.kafka, "topic", "create", name)

    def complete(words: str, at: int) -> str:
        environment = os.environ | {
            "_RUNNEL_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(at),
            "RUNNEL_BROKER": broker.kafka,
        }
        code = "import sys; sys.argv = ['runnel']; from runnel.cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
        )
        return done.stdout

    assert "plain,consume" in complete("runnel con", 1)
    assert f"plain,{name}" in complete("runnel consume cli-", 2)


def test_what_commands_write_is_private_to_their_user() -> None:
    run = "from runnel.cli.main import main\ntry: main()\nexcept SystemExit: print(oct(os.umask(0)))"
    program = f"import os, sys; sys.argv = ['runnel', 'version']\n{run}"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "0o77"
