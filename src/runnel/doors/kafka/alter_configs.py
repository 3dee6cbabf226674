# AlterConfigs (key 33), v0-v2: what is not named goes back to its default.
# IncrementalAlterConfigs (key 44), v0-v1: set, delete, append, subtract (KIP-339).
"""Change the settings of topics, brokers and groups."""

from runnel.cluster.config_rules import BrokerResource, ConfigChange, ConfigOp, TopicResource
from runnel.cluster.controller import Resource
from runnel.cluster.group_rules import GroupResource
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.describe_configs import BROKER, GROUP, TOPIC
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import InvalidRequest, RunnelError, as_value
from runnel.model.ids import BrokerId
from runnel.model.numbers import whole_number
from runnel.wire.kafka import messages as m


async def alter_configs(request: m.AlterConfigsRequest, call: Call) -> m.AlterConfigsResponse:
    asked = [
        (resource.resource_type, resource.resource_name, [ConfigChange(c.name, c.value) for c in resource.configs])
        for resource in request.resources
    ]
    errors = await _alter(asked, call, incremental=False, validate_only=request.validate_only)
    return m.AlterConfigsResponse(
        responses=[
            m.AlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=code_of(error), error_message=text_of(error), resource_type=kind, resource_name=name
            )
            for (kind, name, _), error in zip(asked, errors, strict=True)
        ]
    )


async def incremental_alter_configs(
    request: m.IncrementalAlterConfigsRequest, call: Call
) -> m.IncrementalAlterConfigsResponse:
    asked = [
        (resource.resource_type, resource.resource_name, [_change(c) for c in resource.configs])
        for resource in request.resources
    ]
    errors = await _alter(asked, call, incremental=True, validate_only=request.validate_only)
    return m.IncrementalAlterConfigsResponse(
        responses=[
            m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=code_of(error), error_message=text_of(error), resource_type=kind, resource_name=name
            )
            for (kind, name, _), error in zip(asked, errors, strict=True)
        ]
    )


def _change(config: m.IncrementalAlterConfigsRequest.AlterableConfig) -> ConfigChange | RunnelError:
    try:
        return ConfigChange(config.name, config.value, ConfigOp(config.config_operation))
    except ValueError:
        return InvalidRequest(f"setting {config.name}: operation {config.config_operation} is not one of 0 to 3")


async def _alter(
    asked: list[tuple[int, str, list[ConfigChange | RunnelError]]] | list[tuple[int, str, list[ConfigChange]]],
    call: Call,
    *,
    incremental: bool,
    validate_only: bool,
) -> list[RunnelError | None]:
    """An error or None for each resource; one that is wrong costs the others nothing."""
    results: list[RunnelError | None] = []
    for kind, name, changes in asked:
        try:
            resource = _resource(kind, name)
            sound = [_sound(change) for change in changes]
            [error] = await call.broker.topics.alter_configs(
                [(resource, sound)], incremental=incremental, validate_only=validate_only
            )
        except RunnelError as refused:
            error = as_value(refused)
        results.append(error)
    return results


def _sound(change: ConfigChange | RunnelError) -> ConfigChange:
    if isinstance(change, RunnelError):
        raise change
    return change


def _resource(kind: int, name: str) -> Resource:
    if kind == TOPIC:
        return TopicResource(name)
    if kind == BROKER and name == "":
        return BrokerResource(None)
    if kind == BROKER and (number := whole_number(name)) is not None and number >= 0:
        return BrokerResource(BrokerId(number))
    if kind == GROUP:
        return GroupResource(name)
    raise InvalidRequest(
        f"resource {name!r} of type {kind} can't be changed: 2 is a topic, 4 a broker by its number, 32 a group"
    )
