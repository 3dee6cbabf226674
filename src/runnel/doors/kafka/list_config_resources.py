# ListConfigResources (key 74), v0-v1.  v0 client metrics alone, which Runnel does not have; v1 all kinds (KIP-1142)
"""ListConfigResources: what has settings, by kind."""

from runnel.broker.broker import Broker
from runnel.cluster.image import GROUP as GROUP_KEY
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.describe_configs import BROKER, GROUP, TOPIC
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.error_codes import ErrorCode

KINDS_SINCE = 1
KNOWN = (TOPIC, BROKER, GROUP)
OTHERS = (8, 16)  # loggers and client metrics: Kafka has them, and there are none here


async def list_config_resources(request: m.ListConfigResourcesRequest, call: Call) -> m.ListConfigResourcesResponse:
    kinds = request.resource_types or (KNOWN if call.version >= KINDS_SINCE else ())
    if any(kind not in (*KNOWN, *OTHERS) for kind in kinds):
        return m.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return m.ListConfigResourcesResponse(
        config_resources=[
            m.ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
            for kind in kinds
            for name in _names(kind, call.broker)
        ]
    )


def _names(kind: int, broker: Broker) -> list[str]:
    if kind == TOPIC:
        return sorted(broker.image.names)
    if kind == BROKER:
        return [str(number) for number in sorted(broker.image.registered)]
    if kind == GROUP:
        groups = (each for each in broker.image.configs.items() if each[0].startswith(GROUP_KEY))
        return sorted(key.removeprefix(GROUP_KEY) for key, overrides in groups if overrides.values)
    return []
