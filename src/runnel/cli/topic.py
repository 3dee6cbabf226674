"""`runnel topic`: which commands it has."""

from runnel.cli.command import LazyGroup

TABLE = {
    "create": ("runnel.cli.topic_change:create", "Create topics."),
    "ls": ("runnel.cli.topic_show:ls", "List topics, with the messages and bytes they hold."),
    "describe": ("runnel.cli.topic_show:describe", "Show partitions, offsets, sizes and settings."),
    "alter": ("runnel.cli.topic_change:alter", "Change settings of a topic."),
    "delete": ("runnel.cli.topic_remove:delete", "Delete topics with all their messages."),
    "trim": ("runnel.cli.topic_remove:trim", "Remove the oldest messages of a topic."),
    "partitions": ("runnel.cli.topic_change:partitions", "Give a topic more partitions."),
}

EXAMPLES = """
runnel topic create orders -p 3           three partitions
runnel topic ls                           what there is
runnel topic describe orders              partitions, offsets, sizes, settings
runnel topic trim orders --before @2026-11-01
"""

topic = LazyGroup(name="topic", help="Create, look at, change and delete topics.", table=TABLE, examples=EXAMPLES)
