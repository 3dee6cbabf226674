# WriteTxnMarkers (key 27), v1-v2.  v2 versions of transactions: of 2 a marker ends only lower epochs (KIP-1228)
"""WriteTxnMarkers: a coordinator of transactions tells the leaders of partitions how they ended."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.replica.ending import Ending
from runnel.wire.kafka import messages as m

Request = m.WriteTxnMarkersRequest
Response = m.WriteTxnMarkersResponse


async def write_txn_markers(request: m.WriteTxnMarkersRequest, call: Call) -> m.WriteTxnMarkersResponse:
    results = await call.broker.write_markers(
        [(_ending_of(marker), _partitions_of(marker)) for marker in request.markers]
    )
    return Response(
        markers=[
            Response.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    Response.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            Response.WritableTxnMarkerPartitionResult(
                                partition_index=number,
                                error_code=code_of(results[marker.producer_id, topic.name, number]),
                            )
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def _ending_of(marker: m.WriteTxnMarkersRequest.WritableTxnMarker) -> Ending:
    return Ending(
        marker.producer_id, marker.producer_epoch, marker.transaction_result, marker.coordinator_epoch,
        marker.transaction_version,
    )  # fmt: skip


def _partitions_of(marker: m.WriteTxnMarkersRequest.WritableTxnMarker) -> list[tuple[str, int]]:
    return [(topic.name, number) for topic in marker.topics for number in topic.partition_indexes]
