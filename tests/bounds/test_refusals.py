"""What a client is told that is refused because there is no room."""

import json
from pathlib import Path

from tests.bounds.rig import ask, ask_at_once

from runnel.model.limits import KIB
from runnel.testing.process import BrokerProcess


def test_a_list_for_which_there_is_no_room_is_refused_for_a_moment(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        ask(broker.http, "POST", "/v1/topics", json.dumps({"name": "bulk", "partitions": 1}).encode())
        body = json.dumps([{"text": "x" * 900 * KIB}] * 17).encode()
        answers = ask_at_once(15, lambda _: ask(broker.http, "POST", "/v1/topics/bulk/messages", body))
    refused = [answer for answer in answers if answer.status not in (200, 207)]
    assert refused
    for answer in refused:
        assert answer.status == 503
        assert json.loads(answer.content)["code"] == "too-busy"
        assert answer.headers["retry-after"] == "1"
