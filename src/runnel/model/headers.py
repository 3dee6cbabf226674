"""The headers by which a message tells Runnel what to do with it, and those by which Runnel tells where it was.

They are plain record headers: every client of the Kafka protocol can set and read them. Numbers are decimal text.
"""

from typing import Final

PREFIX: Final = "runnel-"

# --- what a producer asks for
MESSAGE_ID: Final = "runnel-message-id"  # the message's name: a second one of the same name is not kept
DELIVER_AT: Final = "runnel-deliver-at"  # milliseconds since 1970 UTC, or ISO 8601
DELAY_MS: Final = "runnel-delay-ms"  # from when the broker got it
EXPIRES_AT: Final = "runnel-expires-at"  # queues do not deliver it after that
TTL_MS: Final = "runnel-ttl-ms"  # the same, from when the broker got it
PRIORITY: Final = "runnel-priority"
TAG: Final = "runnel-tag"  # what a filter calls `tag`

# --- where a dead letter or a copy comes from
ORIGIN_TOPIC: Final = "runnel-origin-topic"
ORIGIN_PARTITION: Final = "runnel-origin-partition"
ORIGIN_OFFSET: Final = "runnel-origin-offset"
ORIGIN_TIMESTAMP: Final = "runnel-origin-timestamp"
ORIGIN_MESSAGE_ID: Final = "runnel-origin-message-id"  # the name it had: a copy has one of its own
COPIED_BY: Final = "runnel-copied-by"  # of a copy for another attempt: what made it, see queues/copies.py
COPY_EXPIRES_AT: Final = "runnel-copy-expires-at"  # of a copy for a later attempt: when the message itself expires
ATTEMPTS: Final = "runnel-attempts"  # how often it had been delivered
DEAD_QUEUE: Final = "runnel-dead-queue"  # the queue that gave it up
DEAD_REASON: Final = "runnel-dead-reason"
DEAD_AT: Final = "runnel-dead-at"
REPAIRS: Final = "runnel-repairs"  # how often it was repaired after it had died
