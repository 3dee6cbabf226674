"""Asking every broker, of which some may be dead."""

import asyncio

import pytest
from tests.client.talk import OnCluster

from runnel.client.cluster import Cluster
from runnel.client.each import of_each
from runnel.client.errors import BrokerUnreachable
from runnel.client.metadata import BrokerAddress
from runnel.model.errors import InvalidRequest


def known(cluster: Cluster, *numbers: int) -> None:
    cluster._brokers = {number: BrokerAddress(number, "127.0.0.1", 1) for number in numbers}


def test_who_does_not_answer_holds_nobody_up(on_cluster: OnCluster) -> None:
    async def work(cluster: Cluster) -> None:
        known(cluster, 1, 2, 3)
        all_asked = asyncio.Barrier(3)  # they are asked at the same time

        async def question(broker: int) -> str:
            async with asyncio.timeout(60):
                await all_asked.wait()
            if broker == 2:
                raise BrokerUnreachable("dead")
            return f"broker {broker}"

        assert await of_each(cluster, question) == {1: "broker 1", 2: None, 3: "broker 3"}

    on_cluster(work)


def test_a_question_that_is_wrong_is_an_error(on_cluster: OnCluster) -> None:
    async def work(cluster: Cluster) -> None:
        known(cluster, 1)

        async def question(broker: int) -> str:
            raise InvalidRequest(f"broker {broker} was asked nonsense")

        with pytest.raises(InvalidRequest, match="nonsense"):
            await of_each(cluster, question)

    on_cluster(work)
