"""The courier of one queue: POSTs its messages to a webhook, and settles them by what the subscriber answers.

Rule 1: 2xx accepts a message. Anything else, and silence, releases it: the queue's backoff, attempt limit, dead letters
        and breaker see to the rest.
Rule 2: 429 and 503 with Retry-After are a wish, no failure: nothing is posted until then, and the same message is
        posted again, without another attempt being counted.
Rule 3: no more are under way than the queue's `webhook.concurrency`; who is slow is waited for.
Rule 4: each POST is signed: HMAC-SHA256 of the time and the body, with the queue's secret. The time is part of it, so
        that what was recorded can't be posted again later.
"""

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final

from runnel.broker.fetch import Waits
from runnel.broker.grants import Grants
from runnel.broker.standing import persist
from runnel.model.calls import Delivered, Settlement
from runnel.model.errors import RetriableError, RunnelError, as_value
from runnel.model.queue_config import QueueConfig
from runnel.model.seams import Clock
from runnel.net.posting import Answer, Poster

WAIT_S: Final = 20.0
PAUSE_S: Final = 1.0  # after the queue itself could not be asked
LATER_S_MAX: Final = 3_600.0  # whoever asks for more patience than that is asked again all the same
CALM_DOWN: Final = (429, 503)
CONTENT_TYPE: Final = "content-type"
TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")  # what the name of a header may be

logger = logging.getLogger("runnel.webhooks")


class Courier:
    """Of one queue, as long as this broker delivers it."""

    def __init__(
        self, queue: str, config: QueueConfig, grants: Callable[[Waits], Grants], poster: Poster, clock: Clock
    ) -> None:
        self.config = config
        self._queue = queue
        self._grants = grants
        self._poster = poster
        self._clock = clock
        self._waits = Waits()
        self._not_before = 0.0  # by the loop's clock: the subscriber asked for patience
        self._under_way: set[asyncio.Task[None]] = set()
        work = persist(self._run, f"the webhook of queue {queue!r}")
        self._task = asyncio.get_running_loop().create_task(work)

    async def stop(self) -> None:
        """Give back what is out, and be gone."""
        self._waits.end()
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                async with self._grants(self._waits) as grants:
                    try:
                        await self._deliver(grants)
                    finally:
                        await self._end_posts()
            except RunnelError as error:
                logger.info("the webhook of queue %r goes on in a moment: %s", self._queue, error)
            await asyncio.sleep(PAUSE_S)

    async def _deliver(self, grants: Grants) -> None:
        loop = asyncio.get_running_loop()
        while not self._waits.over:
            if (left_s := self._not_before - loop.time()) > 0:
                await asyncio.sleep(left_s)
            for message in await grants.receive(grants.credit, WAIT_S):
                task = loop.create_task(self._hand_over(grants, message))
                self._under_way.add(task)
                task.add_done_callback(partial(self._handed_over, grants, message.receipt))
            await asyncio.sleep(0)

    async def _end_posts(self) -> None:
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def _hand_over(self, grants: Grants, message: Delivered) -> None:
        settlement = await self._post(message)
        try:
            [error] = await grants.settle([settlement])
        except RetriableError as problem:
            error = as_value(problem)
        if error is not None:
            grants.forget(message.receipt)
            logger.info("a message of queue %r was posted, but not settled: %s", self._queue, error)

    def _handed_over(self, grants: Grants, receipt: str, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            grants.forget(receipt)  # its lease would be extended for ever
            logger.error("a message of queue %r could not be posted: it comes again", self._queue, exc_info=error)

    async def _post(self, message: Delivered) -> Settlement:
        """Post until there is an answer that counts."""
        loop = asyncio.get_running_loop()
        while True:
            body = message.value or b""
            headers = self._headers(message, body)
            try:
                answer = await self._poster.post(
                    self.config.webhook_url, headers, body, self.config.webhook_timeout_ms / 1000
                )
            except RunnelError as error:
                logger.info("a message of queue %r was not taken: %s", self._queue, error)
                return Settlement(message.receipt, "release", None, f"attempts: {error}")
            if answer.status // 100 == 2:
                return Settlement(message.receipt, "accept")
            later_s = self._asked_patience(answer)
            if later_s is None:
                logger.info("a message of queue %r was answered with %d", self._queue, answer.status)
                return Settlement(message.receipt, "release", None, f"attempts: answered with {answer.status}")
            self._not_before = max(self._not_before, loop.time() + later_s)
            await asyncio.sleep(self._not_before - loop.time())

    def _asked_patience(self, answer: Answer) -> float | None:
        """For how long the subscriber asks to be left alone, if it does."""
        text = answer.headers.get("retry-after")
        if answer.status not in CALM_DOWN or text is None:
            return None
        if text.isascii() and text.isdigit():
            return min(float(text), LATER_S_MAX)
        try:
            then = parsedate_to_datetime(text).timestamp()
        except (ValueError, OverflowError):
            return None
        return min(max(0.0, then - self._clock.wall_ms() / 1000), LATER_S_MAX)

    def _headers(self, message: Delivered, body: bytes) -> dict[str, str]:
        now_s = self._clock.wall_ms() // 1000
        headers = {
            "Content-Type": "application/octet-stream",
            "User-Agent": "runnel",
            "Runnel-Queue": self._queue,
            "Runnel-Message": f"{message.topic}/{message.partition}/{message.offset}",
            "Runnel-Attempt": str(message.attempt),
            "Runnel-Sent": str(message.timestamp_ms),
            "Runnel-Timestamp": str(now_s),
            "Runnel-Signature": f"v1={signature(self.config.webhook_secret, now_s, body)}",
        }
        if message.key is not None and (key := _printable(message.key)) is not None:
            headers["Runnel-Key"] = key
        for name, value in message.headers:
            text = _printable(value or b"")
            if text is None or not TOKEN.fullmatch(name):
                continue
            headers["Content-Type" if name.lower() == CONTENT_TYPE else f"Runnel-Header-{name}"] = text
        return headers


def signature(secret: str, timestamp_s: int, body: bytes) -> str:
    """What a subscriber reckons too, to know who posts."""
    return hmac.new(secret.encode(), b"%d." % timestamp_s + body, hashlib.sha256).hexdigest()


def _printable(value: bytes) -> str | None:
    """A text that a header can carry as it is; None if it can't."""
    text = value.decode("latin-1")
    return text if len(text) <= 1_000 and text.isascii() and text.isprintable() else None
