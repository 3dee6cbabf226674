"""`runnel queue`: which commands it has."""

from runnel.cli.command import LazyGroup

TABLE = {
    "create": ("runnel.cli.queue_define:create", "Create queues, each on a topic."),
    "ls": ("runnel.cli.queue_show:ls", "List queues, with what waits in them."),
    "describe": ("runnel.cli.queue_show:describe", "Show the state of each partition, and the settings."),
    "alter": ("runnel.cli.queue_define:alter", "Change settings of a queue."),
    "delete": ("runnel.cli.queue_define:delete", "Delete queues; with --topics their messages too."),
    "send": ("runnel.cli.queue_send:send", "Send messages from stdin, files or arguments."),
    "receive": ("runnel.cli.queue_receive:receive", "Lease messages, print them, and say what became of them."),
    "settle": ("runnel.cli.queue_settle:settle", "Accept, release or reject messages by their receipts."),
    "extend": ("runnel.cli.queue_settle:extend", "Keep leased messages for longer."),
    "peek": ("runnel.cli.queue_show:peek", "Print messages without leasing them."),
    "purge": ("runnel.cli.queue_shift:purge", "Give up all that waits in a queue."),
    "rewind": ("runnel.cli.queue_shift:rewind", "Deliver again, from an earlier place or time on; or skip."),
}

EXAMPLES = """
runnel queue create jobs --lease 1m --attempts 3     a queue, and its topic
echo hello | runnel queue send jobs
runnel queue receive jobs -c 1                       lease, print, accept
runnel queue describe jobs                           what waits, what is leased, what failed
runnel dlq ls jobs                                   what could not be done
"""

queue = LazyGroup(
    name="queue",
    help="Queues: messages that are leased one by one, accepted or tried again, and given up after some attempts.",
    table=TABLE,
    examples=EXAMPLES,
)
