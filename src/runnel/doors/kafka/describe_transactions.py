# DescribeTransactions (key 65), v0
"""DescribeTransactions: where transactional ids kept here stand."""

from collections.abc import Iterable

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.model.errors import RunnelError
from runnel.transactions.values import NamedPartition
from runnel.wire.kafka import messages as m

Response = m.DescribeTransactionsResponse


async def describe_transactions(request: m.DescribeTransactionsRequest, call: Call) -> m.DescribeTransactionsResponse:
    return Response(transaction_states=[await _described(name, call) for name in request.transactional_ids])


async def _described(transactional_id: str, call: Call) -> m.DescribeTransactionsResponse.TransactionState:
    try:
        found = await call.broker.transactions.describe(transactional_id)
    except RunnelError as error:
        return Response.TransactionState(error_code=code_of(error), transactional_id=transactional_id)
    return Response.TransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state.label,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.began_ms,
        producer_id=found.producer.producer_id,
        producer_epoch=found.producer.epoch,
        topics=_topics(found.partitions),
    )


def _topics(partitions: Iterable[NamedPartition]) -> list[m.DescribeTransactionsResponse.TopicData]:
    topics: dict[str, list[int]] = {}
    for name, number in partitions:
        topics.setdefault(name, []).append(number)
    return [Response.TopicData(topic=name, partitions=numbers) for name, numbers in topics.items()]
