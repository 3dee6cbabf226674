"""Gives the cluster orders, with kafka-python; amid faults they may be refused, or done without an answer."""

import threading
from collections.abc import Callable
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError

PREFERRED = 0  # a kind of election
PATIENCE_S = 6.0


class Operator:
    """Every order returns whether it was accepted."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap.split(",")

    def elect(self, partitions: dict[str, list[int]] | None) -> bool:
        """Give the lead to the preferred leaders of these partitions, or of all."""
        return self._tell(lambda admin: admin.elect_leaders(PREFERRED, partitions, raise_errors=False))

    def reassign(self, topic: str, partition: int, replicas: list[int]) -> bool:
        return self._tell(lambda admin: self._reassign(admin, TopicPartition(topic, partition), replicas))

    @staticmethod
    def _reassign(admin: Any, place: TopicPartition, replicas: list[int]) -> None:
        for error in admin.alter_partition_reassignments({place: replicas}).values():
            if error is not None:
                raise error

    def _tell(self, order: Callable[[Any], Any]) -> bool:
        """Tell it, and wait for the answer a while; the client may go on trying for longer than a fault should last."""
        answers: list[bool] = []
        telling = threading.Thread(target=lambda: answers.append(self._tell_now(order)), daemon=True)
        telling.start()
        telling.join(PATIENCE_S)
        return answers == [True]

    def _tell_now(self, order: Callable[[Any], Any]) -> bool:
        try:
            admin = KafkaAdminClient(bootstrap_servers=self._bootstrap, request_timeout_ms=int(PATIENCE_S * 1000))
        except (KafkaError, OSError):
            return False
        try:
            order(admin)
        except (KafkaError, OSError, ValueError):
            return False
        else:
            return True
        finally:
            admin.close()
