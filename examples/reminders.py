"""Reminders: messages that come later, can be moved, and can be taken back, exactly.

    make run                                 in one terminal
    .venv/bin/python examples/reminders.py   in another

A reminder waits in the schedule, on disk, and comes when it is due: never early, in the order of the due times, also if
brokers die in between. Cancelling says whether it was in time. This example does without `async`.
"""

import os
import time

from runnel.client.sync import connect
from runnel.model.errors import NotPending


def main() -> None:
    topic = f"reminders-{time.time_ns()}"
    with connect(os.environ.get("RUNNEL_BROKER", "127.0.0.1:9092")) as runnel:
        queue = runnel.queue(topic)
        queue.create(partitions=1)
        hours = {"go to bed": 4, "call mum": 3, "buy milk": 2, "pay rent": 1}
        ids = {what: runnel.send(topic, what, delay=3600 * delay).scheduled_id for what, delay in hours.items()}
        print(f"waiting: {[message.text for message in runnel.schedule.pending(topic)]}")

        runnel.schedule.cancel(ids["buy milk"])
        due = {}
        for what, delay in (("pay rent", 0.3), ("call mum", 0.6), ("go to bed", 0.9)):  # this cannot wait for hours
            due[what] = time.time() + delay
            runnel.schedule.move(ids[what], delay=delay)
        came = []
        for message in queue.messages(batch=1):
            with message:
                early = time.time() < due[message.text]
                came.append(message.text)
                print(f"{message.text}{' EARLY' if early else ''}")
            if len(came) == 3:
                break
        print(f"waiting: {runnel.schedule.count(topic)}")
        try:
            runnel.schedule.cancel(ids["pay rent"])
        except NotPending as error:
            print(f"too late: {error}")


if __name__ == "__main__":
    main()
