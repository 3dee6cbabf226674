"""`runnel cluster`: which commands it has."""

from runnel.cli.command import LazyGroup

TABLE = {
    "status": ("runnel.cli.cluster_show:status", "Show how the cluster is, and what it lacks."),
    "brokers": ("runnel.cli.cluster_show:brokers", "List brokers, with what they lead and hold."),
    "reassign": ("runnel.cli.cluster_reassign:reassign", "Move replicas to other brokers; watch or cancel that."),
    "balance": ("runnel.cli.cluster_reassign:balance", "Spread replicas and leaders over all brokers."),
    "drain": ("runnel.cli.cluster_reassign:drain", "Move everything away from a broker."),
    "unregister": ("runnel.cli.cluster_unregister:unregister", "Forget a broker that is gone for good."),
    "elect": ("runnel.cli.cluster_elect:elect", "Let the preferred replicas lead."),
}

EXAMPLES = """
runnel cluster status                     who is there, what is missing
runnel cluster balance                    after a broker was added: give it its share
runnel cluster drain 3                    before a broker is taken away
runnel cluster reassign --watch           how far the moves are
"""

cluster = LazyGroup(
    name="cluster", help="Look at a cluster; move replicas and leaders.", table=TABLE, examples=EXAMPLES
)
