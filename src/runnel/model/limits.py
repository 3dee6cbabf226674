"""Bounds that hold everywhere, each with its reason."""

import re

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

FRAME_BYTES_MAX = 100 * MIB  # Kafka's socket.request.max.bytes
BATCH_BYTES_MAX = MIB + 12  # Kafka's message.max.bytes: 1 MiB and the log overhead
NAME_CHARS_MAX = 249  # Kafka's limit for topic names
NAME_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,249}")
GROUP_ID_CHARS_MAX = 32_767  # what a string of the protocol holds
OFFSET_METADATA_BYTES_MAX = 4 * KIB  # Kafka's offset.metadata.max.bytes
CREATE_PARTITIONS_MAX = 10_000  # partitions one request may create: bounds what a typing error costs


def topic_name_problem(name: str) -> str | None:
    """Why a topic can't have this name, or None if it can."""
    if name in (".", ".."):
        return f"topic name {name!r} is not allowed: '.' and '..' are names of folders"
    if not NAME_PATTERN.fullmatch(name):
        shown = name if len(name) <= 60 else name[:57] + "..."
        allowed = f"1 to {NAME_CHARS_MAX} characters out of letters, digits, '.', '_' and '-'"
        return f"topic name {shown!r} is not allowed: use {allowed}"
    return None
