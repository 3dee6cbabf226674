"""`runnel txn`: which commands it has."""

from runnel.cli.command import LazyGroup

TABLE = {
    "ls": ("runnel.cli.txn_show:ls", "List transactional ids and the states of their transactions."),
    "describe": ("runnel.cli.txn_show:describe", "Show a transaction: its producer, its age, what it has written to."),
    "abort": ("runnel.cli.txn_abort:abort", "Abort a transaction whose producer is gone or stuck."),
}

EXAMPLES = """
runnel txn ls                             all transactional ids
runnel txn ls --open-for 60               those whose transaction is open for more than a minute
runnel txn describe billing-1             what it has written to, and since when
runnel txn abort billing-1                end it; its producer may not go on
"""

txn = LazyGroup(name="txn", help="Look at transactions; abort those that are stuck.", table=TABLE, examples=EXAMPLES)
