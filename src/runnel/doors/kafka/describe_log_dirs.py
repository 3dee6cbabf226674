# DescribeLogDirs (key 35), v1-v5.  v2 flexible, v3 error of the whole, v4 sizes of the disk
"""DescribeLogDirs: how many bytes each partition takes."""

from runnel.doors.kafka.call import Call
from runnel.wire.kafka import messages as m

Result = m.DescribeLogDirsResponse.DescribeLogDirsResult


async def describe_log_dirs(request: m.DescribeLogDirsRequest, call: Call) -> m.DescribeLogDirsResponse:
    wanted = None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
    topics: dict[str, list[m.DescribeLogDirsResponse.DescribeLogDirsPartition]] = {}
    for partition in call.broker.partitions:
        number = partition.key.number
        if wanted is None or number in wanted.get(partition.topic, ()):
            topics.setdefault(partition.topic, []).append(
                m.DescribeLogDirsResponse.DescribeLogDirsPartition(
                    partition_index=number, partition_size=partition.log.size_bytes
                )
            )
    free, total = await call.broker.disk.offload(
        lambda: (call.broker.disk.free_bytes(), call.broker.disk.total_bytes())
    )
    return m.DescribeLogDirsResponse(
        results=[
            Result(
                log_dir=call.broker.config.data,
                topics=[
                    m.DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=partitions)
                    for name, partitions in topics.items()
                ],
                total_bytes=total,
                usable_bytes=free,
            )
        ]
    )
