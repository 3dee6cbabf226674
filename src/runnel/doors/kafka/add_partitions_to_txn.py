# AddPartitionsToTxn (key 24), v0-v5.  v2 fencing apart from epochs, v3 flexible, v4 many transactions (KIP-890)
"""AddPartitionsToTxn: let partitions take part in a transaction, or see whether they do.

Clients ask in v0-v3 about one transaction. Leaders of partitions ask in v4 and above, for their producers.
"""

import asyncio
from collections.abc import Sequence

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import transaction_code
from runnel.model.errors import RunnelError
from runnel.model.ids import ProducerId
from runnel.transactions.values import AddPartitions, Identity, NamedPartition
from runnel.wire.kafka import messages as m

FENCING_SINCE = 2
MANY_SINCE = 4
Request = m.AddPartitionsToTxnRequest
Response = m.AddPartitionsToTxnResponse
Topics = Sequence[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]


async def add_partitions_to_txn(request: m.AddPartitionsToTxnRequest, call: Call) -> m.AddPartitionsToTxnResponse:
    if call.version >= MANY_SINCE:
        results = await asyncio.gather(*[_result(transaction, call) for transaction in request.transactions])
        return Response(results_by_transaction=results)
    one = Request.AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return Response(results_by_topic_v3_and_below=(await _result(one, call)).topic_results)


async def _result(
    transaction: m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction, call: Call
) -> m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult:
    codes = await _codes(transaction, call)
    return Response.AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=[
            Response.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    Response.AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=codes[topic.name, number]
                    )
                    for number in topic.partitions
                ],
            )
            for topic in transaction.topics
        ],
    )


async def _codes(
    transaction: m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction, call: Call
) -> dict[NamedPartition, int]:
    producer = Identity(ProducerId(transaction.producer_id), transaction.producer_epoch)
    partitions = tuple((topic.name, number) for topic in transaction.topics for number in topic.partitions)
    asked = AddPartitions(transaction.transactional_id, producer, partitions, transaction.verify_only)
    knows_fencing = call.version >= FENCING_SINCE
    try:
        added = await call.broker.transactions.add_partitions(asked)
    except RunnelError as error:
        return dict.fromkeys(partitions, transaction_code(error, knows_fencing=knows_fencing))
    return {named: transaction_code(error, knows_fencing=knows_fencing) for named, error in added.errors.items()}
