"""Webhooks: brokers POST the messages of a topic to a subscriber. Each is a queue of its own, with a URL."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from runnel.doors.http.call import Call
from runnel.doors.http.messages import Filter
from runnel.doors.http.operation import Struct, View, operation
from runnel.doors.http.topics import After, NamesMax, SettingValue, setting_text
from runnel.model.calls import QUEUE_CREATE, QUEUE_DELETE, QUEUE_LIST, CreateQueue, DeleteQueue, ListedQueue, ListQueues
from runnel.model.errors import UnknownQueue
from runnel.model.queue_config import SECRET_CHARS_MAX, URL_CHARS_MAX
from runnel.net.posting import must_be_public, parse_url

SECRET_BYTES: Final = 24
URL: Final = "webhook.url"


class NewWebhook(Struct):
    """What to POST, and where."""

    name: Annotated[str, Meta(min_length=1, max_length=249, description="of the webhook, and of its queue")]
    topic: Annotated[str, Meta(min_length=1, max_length=249, description="whose messages are posted")]
    url: Annotated[str, Meta(min_length=8, max_length=URL_CHARS_MAX, description="http or https")]
    secret: Annotated[
        Annotated[str, Meta(min_length=8, max_length=SECRET_CHARS_MAX)] | None,
        Meta(description="POSTs are signed with it; one is made if it is left out"),
    ] = None
    filter: Filter = ""
    settings: Annotated[dict[str, SettingValue], Meta(description="others of the queue")] = msgspec.field(
        default_factory=dict
    )


class MadeWebhook(View, omit_defaults=False):
    name: str
    topic: str
    url: str
    secret: str  # it is not shown again


class WebhookView(View, omit_defaults=False):
    name: str
    topic: str
    url: str


class WebhooksView(View, omit_defaults=False):
    webhooks: list[WebhookView]
    more: bool  # ask again with after=NAME of the last one


@operation("POST /v1/webhooks", status=201)
async def create_webhook(call: Call, body: NewWebhook) -> MadeWebhook:
    """Have the messages of a topic posted to a URL.

    Each message is a POST with its value as the body. 2xx takes it; anything else is tried again with backoff, and
    becomes a dead letter in the end; 429 or 503 with Retry-After is waited for. The header Runnel-Signature is
    v1=HMAC-SHA256 over "TIMESTAMP.BODY" with the secret, TIMESTAMP being the header Runnel-Timestamp. It is a queue of
    the same name: look at it, change it, purge and rewind it under /v1/queues.

        POST /v1/webhooks {"name": "billing-hook", "topic": "orders", "url": "https://billing.example.com/orders"}
    """
    place = parse_url(body.url)
    if not call.broker.config.webhook_private:
        must_be_public(place)
    secret = body.secret or call.door.rng.token(SECRET_BYTES).hex()
    settings = {name: setting_text(value) for name, value in body.settings.items()}
    settings |= {"topic": body.topic, URL: body.url, "webhook.secret": secret}
    if body.filter:
        settings["filter"] = body.filter
    made = await call.broker.calls.ask(call.broker.id, QUEUE_CREATE, CreateQueue(body.name, settings))
    return MadeWebhook(name=made.queue, topic=made.topic, url=body.url, secret=secret)


@operation("GET /v1/webhooks")
async def list_webhooks(call: Call, after: After = "", limit: NamesMax = 1_000) -> WebhooksView:
    """List the webhooks by name.

    GET /v1/webhooks?limit=100
    """
    found: list[ListedQueue] = []
    more = True
    while more and len(found) <= limit:
        page = await call.look(QUEUE_LIST, ListQueues(after=after))
        found += [each for each in page.queues if each.settings.get(URL)]
        more = page.more
        after = page.queues[-1].queue if page.queues else after
    views = [WebhookView(name=each.queue, topic=each.topic, url=each.settings[URL]) for each in found[:limit]]
    return WebhooksView(webhooks=views, more=len(found) > limit)


@operation("DELETE /v1/webhooks/{name}")
async def delete_webhook(call: Call, name: str) -> None:
    """Delete a webhook, with its queue. The topic stays.

    DELETE /v1/webhooks/billing-hook
    """
    found = await call.broker.calls.ask(call.broker.id, QUEUE_LIST, ListQueues(name, queues_max=1))
    if not any(each.queue == name and each.settings.get(URL) for each in found.queues):
        raise UnknownQueue(f"webhook {name!r} does not exist: see GET /v1/webhooks")
    await call.broker.calls.ask(call.broker.id, QUEUE_DELETE, DeleteQueue(name))
