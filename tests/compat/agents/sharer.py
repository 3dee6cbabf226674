"""A member of a share group by confluent-kafka: lines of JSON in, lines of JSON out. See ../sharer.py."""

import json
import sys
import traceback
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException

preview: Any = confluent_kafka  # its share consumer is not typed


class Member:
    """One share consumer."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.consumer: Any = None

    def open(self, request: dict[str, Any]) -> None:
        settings = {"bootstrap.servers": self.bootstrap, "group.id": request["group"], **request["options"]}
        self.consumer = preview.ShareConsumer(settings)
        self.consumer.subscribe(request["topics"])

    def poll(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        found = self.consumer.poll(timeout=request["ms"] / 1000)
        for message in found:
            if message.error() is not None:
                raise KafkaException(message.error())
        return [
            {
                "topic": message.topic(),
                "partition": message.partition(),
                "offset": message.offset(),
                "value": None if message.value() is None else message.value().hex(),
                "attempt": message.delivery_count() if hasattr(message, "delivery_count") else -1,
            }
            for message in found
        ]

    def acknowledge(self, request: dict[str, Any]) -> None:
        how = getattr(preview.AcknowledgeType, request["how"])
        for topic, partition, offset in request["places"]:
            self.consumer.acknowledge_offset(topic, partition, offset, how)

    def commit(self, request: dict[str, Any]) -> dict[str, str]:
        results = self.consumer.commit_sync(timeout=30)
        return {
            f"{place.topic}/{place.partition}": "" if error is None else error.args[0].name()
            for place, error in results.items()
        }

    def leave(self, request: dict[str, Any]) -> None:
        self.consumer.close()
        self.consumer = None


def main() -> None:
    """Answer until the input ends."""
    member = Member(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"ok": getattr(member, request["do"])(request)}
        except Exception as error:  # noqa: BLE001 - whatever it is, the test has to hear of it
            traceback.print_exc()
            code = error.args[0].code() if isinstance(error, KafkaException) else None
            reply = {"error": code, "message": repr(error)}
        print(json.dumps({"id": request["id"], **reply}), flush=True)
    if member.consumer is not None:
        member.consumer.close()


if __name__ == "__main__":
    main()
