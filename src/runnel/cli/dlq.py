"""`runnel dlq`: which commands it has."""

from runnel.cli.command import LazyGroup

TABLE = {
    "ls": ("runnel.cli.dlq_show:ls", "List dead letters of a queue, or the queues that have some."),
    "show": ("runnel.cli.dlq_show:show", "Show one dead letter: why it died, and all of it."),
    "redrive": ("runnel.cli.dlq_move:redrive", "Send dead letters back to where they came from."),
    "drop": ("runnel.cli.dlq_move:drop", "Remove dead letters for ever."),
}

EXAMPLES = """
runnel dlq ls                             queues that have dead letters
runnel dlq ls jobs                        which, and why
runnel dlq show jobs 0/17                 one of them, all of it
runnel dlq redrive jobs --dry-run         what would be sent back
runnel dlq redrive jobs --rate 100        send it back, 100 a second
"""

dlq = LazyGroup(
    name="dlq",
    help="Dead letters: messages that a queue gave up, with their origin and the reason.",
    table=TABLE,
    examples=EXAMPLES,
)
