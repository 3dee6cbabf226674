"""Metrics, health, and the cluster over HTTP."""

from prometheus_client.parser import text_string_to_metric_families

from runnel.testing.process import BrokerProcess

from .api import Api


def scraped(api: Api) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = api.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.content.decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_metrics_tell_what_happened(api: Api) -> None:
    api.ok("POST", "/v1/topics", {"name": "m-topic", "partitions": 2})
    api.ok("POST", "/v1/queues", {"name": "m-queue"})
    before = scraped(api)
    api.ok("POST", "/v1/topics/m-topic/messages", [{"value": n} for n in range(10)])
    api.ok("POST", "/v1/groups/m-group/seek", {"topic": "m-topic", "to": "start"})
    api.ok("POST", "/v1/queues/m-queue/messages", [{"value": n} for n in range(3)])
    api.ok("POST", "/v1/queues/m-queue/receive?limit=2&wait_ms=10000")
    api.ok("POST", "/v1/topics/m-topic/messages", {"value": "later", "delay_ms": 3_600_000})
    now = scraped(api)
    assert now["runnel_topic_messages_total", (("topic", "m-topic"),)] == 10
    assert now["runnel_topic_bytes", (("topic", "m-topic"),)] > 0
    assert now["runnel_group_lag", (("group", "m-group"), ("topic", "m-topic"))] == 10
    assert now["runnel_queue_leased", (("queue", "m-queue"),)] == 2
    assert now["runnel_queue_ready", (("queue", "m-queue"),)] == 1
    assert now["runnel_schedule_pending", ()] == before["runnel_schedule_pending", ()] + 1
    for name in ("runnel_door_requests_total", "runnel_door_bytes_in_total", "runnel_door_bytes_out_total"):
        assert now[name, (("door", "http"),)] > before[name, (("door", "http"),)]
        assert now[name, (("door", "kafka"),)] > 0
    assert now["runnel_partitions_led", ()] == now["runnel_partitions", ()] > 0
    assert now["runnel_partitions_under_replicated", ()] == 0
    assert now["runnel_controller", ()] == 1
    assert now["runnel_loop_lag_seconds", ()] >= 0
    assert now["process_resident_memory_bytes", ()] > 0


def test_metrics_tell_what_queues_had_no_room_for(api: Api) -> None:
    api.ok(
        "POST", "/v1/queues", {"name": "m-full", "partitions": 1, "settings": {"max.length": "2", "overflow": "refuse"}}
    )
    api.ok("POST", "/v1/queues/m-full/messages", [{"value": n} for n in range(2)])
    label = (("queue", "m-full"),)
    assert scraped(api)["runnel_queue_refused_total", label] == 0
    for _ in range(3):
        assert api.post("/v1/queues/m-full/messages", {"value": "more"}).code == "policy-violation"
    now = scraped(api)
    assert (now["runnel_queue_refused_total", label], now["runnel_queue_window_full_total", label]) == (3, 0)


def test_metrics_tell_how_many_dead_letters_there_are(api: Api) -> None:
    api.ok("POST", "/v1/queues", {"name": "m-dead", "partitions": 1})
    api.ok("POST", "/v1/queues/m-dead/messages", [{"value": n} for n in range(3)])
    got = api.ok("POST", "/v1/queues/m-dead/receive?limit=3&wait_ms=10000")["messages"]
    api.ok("POST", "/v1/queues/m-dead/reject", {"receipts": [each["receipt"] for each in got]})
    gauge, counter = ("runnel_queue_dead_letters", "runnel_queue_dead_total")
    label = (("queue", "m-dead"),)
    while scraped(api).get((gauge, label)) != 3:
        continue
    api.ok("POST", "/v1/queues/m-dead/redrive", {})
    while scraped(api)[gauge, label] != 0:
        continue
    assert scraped(api)[counter, label] == 3
    described = api.ok("GET", "/v1/queues/m-dead")
    assert (described["dead"], described["died"]) == (0, 3)


def test_metrics_tell_how_often_a_filter_could_not_reach(api: Api) -> None:
    api.ok("POST", "/v1/queues", {"name": "m-far", "partitions": 1, "settings": {"window.max": "2"}})
    label = (("queue", "m-far"),)
    api.ok("POST", "/v1/queues/m-far/messages", [{"value": 0}] * 150 + [{"value": 1, "key": "red"}])
    for _ in range(2):
        assert api.post("/v1/queues/m-far/receive?filter=key%20%3D%20'red'").code == "window-full"
    now = scraped(api)
    assert (now["runnel_queue_window_full_total", label], now["runnel_queue_refused_total", label]) == (2, 0)


def test_a_broker_says_that_it_lives_and_serves(api: Api) -> None:
    assert api.ok("GET", "/health") == {"status": "alive", "broker": 1}
    assert api.ok("GET", "/ready") == {"status": "ready", "broker": 1}


def test_the_cluster_is_told(api: Api, broker: BrokerProcess) -> None:
    told = api.ok("GET", "/v1/cluster")
    [only] = told["brokers"]
    assert (only["broker"], only["state"], only["kafka"], only["http"]) == (1, "serving", broker.kafka, broker.http)
    assert (told["controller"], told["under_replicated"], told["offline"]) == (1, 0, 0)
    assert only["leads"] == only["holds"] == only["in_sync"] == told["partitions"]
