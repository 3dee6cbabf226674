"""What a client is told that is refused because there is no room."""

import json
from pathlib import Path

from tests.bounds import names, requests
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


def test_what_would_become_too_large_is_refused_before_it_is_decoded_and_counted(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        assert "codes 4 x 42" in requests.calls_of_many_values(broker, 1)
        assert "4 x 413" in requests.lists_of_json(broker, 1, 9_000_000)
        told = ask(broker.http, "GET", "/metrics").content.decode()
    assert 'runnel_bounds_met_total{bound="call-values-max"} 4.0' in told
    assert 'runnel_bounds_met_total{bound="inflight-bytes-max"} 4.0' in told
    assert 'runnel_budget_limit_bytes{budget="bodies"}' in told


def test_websockets_do_not_agree_to_be_deflated(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        assert "0 of them deflated" in requests.socket_messages(broker, 2)


def test_a_fetch_session_remembers_no_partitions_that_are_not_there(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        assert names.partitions_of_a_session(broker, 2, 5) == (
            "2 fetches of 5 unknown partitions: codes 2 x closed, 0 sessions kept"
        )
        assert "1 x 42" in names.partitions_of_a_session(broker, 1, 10_001)


def test_topics_that_are_merely_asked_for_are_created_a_few_at_a_time(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        made = names.topics_asked_for(broker, 1, 1_500)
        assert made.endswith(": 100 were made"), made
    with BrokerProcess(tmp_path / "few", environment={"RUNNEL_TOPICS_MAX": "3"}) as broker:
        assert names.topics_asked_for(broker, 1, 4).endswith(": 0 were made")
        made_here = [
            ask(broker.http, "POST", "/v1/topics", json.dumps({"name": f"t{n}"}).encode()).status for n in range(4)
        ]
        assert made_here == [201, 201, 201, 409]
