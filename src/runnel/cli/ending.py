"""How a command is ended from outside, beside Ctrl-C."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: whoever tidies up after Ctrl-C does so after it too; only the exit code differs."""
