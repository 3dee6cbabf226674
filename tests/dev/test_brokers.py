"""The command that starts a broker."""

from pathlib import Path

from runnel.dev.brokers import serve_command


def test_the_command_names_each_address_once() -> None:
    anywhere = serve_command(Path("data"), "127.0.0.1:0", "--broker-id", "1")
    somewhere = serve_command(Path("data"), "127.0.0.1:0", "--http", "127.0.0.1:8080")
    assert anywhere[anywhere.index("--http") + 1] == "127.0.0.1:0"
    assert somewhere[somewhere.index("--http") + 1] == "127.0.0.1:8080"
    assert somewhere.count("--http") == 1
