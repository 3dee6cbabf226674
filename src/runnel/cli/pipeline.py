"""`runnel pipeline`: which jobs there are. Each is a command in a module of its own, `cli/pipeline_JOB.py`."""

from runnel.cli.command import LazyGroup

TABLE: dict[str, tuple[str, str]] = {
    "archive": ("runnel.cli.pipeline_archive:archive", "Topics into a lake, where their history stays."),
    "lake": ("runnel.cli.pipeline_lake:lake", "Look into a lake, compact it, vacuum it; without Spark."),
    "replay": ("runnel.cli.pipeline_replay:replay", "A slice of a lake, back into topics."),
    "audit": ("runnel.cli.pipeline_audit:audit", "Prove that nothing is lost, doubled or out of order."),
    "deadletters": (
        "runnel.cli.pipeline_deadletters:deadletters",
        "Dead letters by reason; repair them, send them back.",
    ),
    "fleet": ("runnel.cli.pipeline_fleet:fleet", "Cars on a live map: speeds, heat, and who went silent."),
    "traffic": ("runnel.cli.pipeline_traffic:traffic", "Rates, sizes, latency, hot keys, skew and lag of topics."),
}

EXAMPLES = """
runnel pipeline archive orders --lake lake  topics into a lake, for ever
runnel pipeline audit --lake lake           nothing lost, doubled or out of order?
runnel pipeline deadletters jobs            what died of a queue, grouped by reason
runnel pipeline fleet run --once            what came so far, and no more
runnel pipeline fleet run --every 10s       for ever; stop it with Ctrl-C
runnel pipeline traffic --table lake        what goes through topics, in a topic and in a table
"""

pipeline = LazyGroup(
    name="pipeline",
    help="Jobs on Spark: to the lake and back, repairs, numbers, maps. They need the extra 'pipelines' and Java 17.",
    table=TABLE,
    examples=EXAMPLES,
)
