"""Asking every broker the same, where each knows only its own part.

A broker that died is listed for a while longer: it must not keep the others from being heard.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from runnel.client.cluster import Cluster
from runnel.model.errors import RetriableError

T = TypeVar("T")


async def of_each(cluster: Cluster, question: Callable[[int], Awaitable[T]]) -> dict[int, T | None]:
    """The answer of every broker that is known now; None for one that does not answer."""
    brokers = sorted(cluster.brokers)
    found = await asyncio.gather(*map(question, brokers), return_exceptions=True)
    answers: dict[int, T | None] = {}
    for broker, answer in zip(brokers, found, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, RetriableError):
            raise answer
        answers[broker] = None if isinstance(answer, BaseException) else answer
    return answers
