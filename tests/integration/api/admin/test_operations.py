from __future__ import annotations

import secrets
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from goq import __version__
from goq.api.routes.operations import OperationRoutes
from goq.http.message import Request
from goq.storage.disk import RealDisk
from goq.storage.scanner import BAD_PAGE_REASON, PAGE_BYTES
from goq.storage.verification import verify_data_dir
from tests.support.api.calls import publish, receive, waiting
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import topic_dir
from tests.support.storage.bad_sectors import BadSectors


def test_a_well_node_says_so(node: RunningNode) -> None:
    assert node.call("GET", "/healthz") == {"status": "ok"}
    assert node.call("GET", "/readyz") == {"status": "ok"}
    assert node.request("GET", "/livez").body == b"ok\n"


def test_the_version_says_what_runs(node: RunningNode) -> None:
    python = sys.version.split()[0]
    expected = {"version": __version__, "python": python, "node": "node-1"}
    assert node.call("GET", "/version") == expected


def test_monitoring_may_add_parameters_of_its_own(node: RunningNode) -> None:
    for path in ("/healthz", "/livez", "/readyz", "/version", "/metrics", "/openapi.json", "/docs"):
        assert node.request("GET", f"{path}?probe=1").status == 200
        head = node.request("HEAD", path)
        assert (head.status, head.body) == (200, b"")


def test_a_stopping_node_is_alive_and_not_ready(node: RunningNode) -> None:
    broker = node.node.broker
    assert broker is not None
    routes = OperationRoutes(broker, "n", None, lambda: True)
    ready = routes.ready(Request("GET", "/readyz"))
    assert (ready.status, ready.body) == (503, b'{"status":"draining"}')
    assert routes.live(Request("GET", "/livez")).status == 200


def test_a_node_is_not_ready_until_it_waits_for_nothing_more(node: RunningNode) -> None:
    broker = node.node.broker
    assert broker is not None
    awaited = ["being in sync in t:0"]
    has_started: list[int] = []
    routes = OperationRoutes(
        broker,
        "n",
        None,
        lambda: False,
        lambda: awaited,
        lambda: bool(has_started),
    )
    ready = routes.ready(Request("GET", "/readyz"))
    assert ready.status == 503
    assert ready.body == b'{"status":"starting","waits_for":["being in sync in t:0"]}'
    has_started.append(1)
    ready = routes.ready(Request("GET", "/readyz"))
    assert ready.body == b'{"status":"unavailable","waits_for":["being in sync in t:0"]}'
    awaited.clear()
    assert routes.ready(Request("GET", "/readyz")).status == 200


def test_damaged_data_is_reported_and_not_served(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
        publish(node, "t", "first")
        publish(node, "t", "second")
        publish(node, "t", "third")
    (segment,) = (topic_dir(tmp_path, "t") / "0" / "messages").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"second")] ^= 1
    segment.write_bytes(data)
    with running_node(tmp_path) as node:
        read = node.call("GET", "/v1/topics/t/messages?partition=0")
        assert [m["value"] for m in read["messages"]] == ["first", "third"]
        assert read["damaged"] == [{"partition": 0, "start_offset": 1, "end_offset": 2}]
        shown = node.request("GET", "/v1/messages/t:0:1")
        assert (shown.status, shown.json["code"]) == (500, "corrupt_data")
        health = node.request("GET", "/healthz")
        assert (health.status, health.json) == (503, {"status": "degraded", "damaged": ["t:0"]})
        assert [m["value"] for m in receive(node, "t")] == ["first", "third"]
        (partition,) = node.call("GET", "/v1/topics/t")["partitions"]
        (damage,) = partition["damaged"]
        assert (damage["start_offset"], damage["end_offset"]) == (1, 2)


def test_bytes_that_the_disk_cannot_read_are_damage_and_no_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["first", "second", "third"]
    with running_node(tmp_path) as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
        for name in names:
            publish(node, "t", name, headers={"pad": secrets.token_hex(5000)})
    (segment,) = (topic_dir(tmp_path, "t") / "0" / "messages").glob("*.log")
    bad = BadSectors(monkeypatch)
    bad.pages.add((segment, segment.stat().st_size // 2 // PAGE_BYTES))
    with running_node(tmp_path) as node:
        assert [m["value"] for m in receive(node, "t")] == ["first", "third"]
        read = node.call("GET", "/v1/topics/t/messages?partition=0")
        assert [m["value"] for m in read["messages"]] == ["first", "third"]
        assert read["damaged"] == [{"partition": 0, "start_offset": 1, "end_offset": 2}]
        shown = node.request("GET", "/v1/messages/t:0:1")
        assert (shown.status, shown.json["code"]) == (500, "corrupt_data")
        health = node.request("GET", "/healthz")
        assert (health.status, health.json) == (503, {"status": "degraded", "damaged": ["t:0"]})
        (partition,) = node.call("GET", "/v1/topics/t")["partitions"]
        assert [damage["reason"] for damage in partition["damaged"]] == [BAD_PAGE_REASON]
        metrics = node.request("GET", "/metrics").body.decode()
        assert 'goq_partition_damaged_messages{partition="0",topic="t"} 1.0' in metrics
    reports = verify_data_dir(RealDisk(), tmp_path).logs
    assert [damage.reason for log in reports for damage in log.report.damage] == [BAD_PAGE_REASON]


def test_who_waits_is_told_at_once_when_the_node_stops(tmp_path: Path) -> None:
    answers: list[Answer] = []
    with running_node(tmp_path) as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 1})

        def ask(method: str, path: str, body: Any) -> None:
            answers.append(node.request(method, path, body))

        threads = [
            threading.Thread(target=ask, args=call)
            for call in (
                ("POST", "/v1/topics/t/groups/g/receive", {"wait": "60s"}),
                ("GET", "/v1/topics/t/messages?partition=0&wait=60s", None),
            )
        ]
        for thread in threads:
            thread.start()
        broker = node.node.broker
        assert broker is not None
        eventually(lambda: waiting(node, "t"))
        eventually(
            lambda: node.on_loop(lambda: broker.topics["t"].receiver.log_readers.waiters.count("0"))
        )
    for thread in threads:
        thread.join(60)
    for answer in answers:
        assert (answer.status, answer.json["code"]) == (503, "shutting_down")
        assert answer.headers["connection"] == "close"
        assert answer.headers["retry-after"] == "1"
    assert len(answers) == 2
