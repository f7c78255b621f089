"""Each metric, driven to a known value on a running node.

A metric that no test names fails the walk over all of them. Those of clusters and of full disks are
in the tests of those.
"""

from __future__ import annotations

import errno
import gc
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from goq import __version__, limits
from goq.broker.retention.archiver import Archiver
from goq.frame.encoder import ProducerMark
from tests.support.api import frames as f
from tests.support.api.calls import publish, receive, settle
from tests.support.api.scrape import families, metric
from tests.support.eventually import eventually
from tests.support.node.archive import publish_segments, retire
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import REPOSITORY

TESTS = REPOSITORY / "tests"
SECOND_MS = 1_000
OBJECT_STORE = ("goq_archive_store", "goq_archive_waiting", "goq_archive_cached")
"""Metrics of nodes that have one, see the tests of those."""


@pytest.fixture
def node() -> Iterator[RunningNode]:
    with running_node() as running:
        running.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
        yield running


def of_topic(node: RunningNode, name: str) -> float | None:
    return metric(node, name, topic="t")


def of_group(node: RunningNode, name: str) -> float | None:
    return metric(node, name, topic="t", group="g")


def log_bytes(node: RunningNode) -> int:
    """Return the bytes of the frames in the logs of messages, as the disk has them."""
    return sum(path.stat().st_size for path in node.data_dir.glob("topics/*/*/messages/*.log"))


def connect(node: RunningNode) -> socket.socket:
    return socket.create_connection(node.address, timeout=30)


def test_every_metric_is_named_in_a_test(node: RunningNode) -> None:
    texts = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    named = set(re.findall(r"\bgoq_[a-z_]+", texts))
    found = {
        name for name in families(node) if not {name, f"{name}_total", f"{name}_count"} & named
    }
    assert found == set()


def test_what_alerts_dashboard_and_docs_name_is_told_by_a_node(node: RunningNode) -> None:
    found = families(node, "")
    assert found >= {"goq_group_lag_messages", "process_open_fds"}
    for path in ("deploy/prometheus/alerts.yaml", "deploy/grafana/goq.json", "docs/metrics.md"):
        text = (REPOSITORY / path).read_text()
        named = set(re.findall(r"\b(?:goq|process)_[a-z_]+", text))
        named = {name for name in named if not name.startswith(OBJECT_STORE)}
        suffixes = ("_total", "_bucket", "_sum", "_count")
        unknown = {
            name
            for name in named
            if not {name, *(name.removesuffix(each) for each in suffixes)} & found
        }
        assert unknown == set(), path


def test_what_is_published_and_settled_is_counted(node: RunningNode) -> None:
    publish(node, "t", *"abcdef")
    assert of_topic(node, "goq_published_messages_total") == 6
    assert of_topic(node, "goq_published_bytes_total") == log_bytes(node) > 6
    assert metric(node, "goq_partition_bytes", topic="t", partition="0") == log_bytes(node)
    assert metric(node, "goq_partition_end_offset", topic="t", partition="0") == 6
    first, second, third, *_ = receive(node, "t", max_messages=4, visibility="1m")
    settle(node, "t", "ack", first["receipt"])
    settle(node, "t", "nack", second["receipt"], third["receipt"], delay="1h")
    assert of_topic(node, "goq_delivered_messages_total") == 4
    assert of_topic(node, "goq_acked_messages_total") == 1
    assert of_topic(node, "goq_nacked_messages_total") == 2
    assert of_topic(node, "goq_expired_messages_total") == 0
    publish(node, "t", "later", delay="2h")
    assert of_group(node, "goq_group_lag_messages") == 5
    assert of_group(node, "goq_group_leased_messages") == 1
    assert of_group(node, "goq_group_retry_messages") == 2
    assert of_group(node, "goq_group_scheduled_messages") == 1
    node.clock.ahead_ms = 90 * SECOND_MS
    eventually(lambda: of_topic(node, "goq_expired_messages_total") == 1)
    assert of_group(node, "goq_group_leased_messages") == 0


def test_the_work_of_each_group_is_counted(node: RunningNode) -> None:
    publish(node, "t", *"abcde", priority="high", tenant="acme")
    publish(node, "t", "f", tenant="zen")
    settings = {"settings": {"max_attempts": 1, "ordering": "none"}}
    node.call("PUT", "/v1/topics/t/groups/g", settings)
    first, second, third = receive(node, "t", max_messages=3, visibility="1m")
    settle(node, "t", "ack", first["receipt"])
    settle(node, "t", "nack", second["receipt"], delay="1h")
    assert of_group(node, "goq_group_delivered_messages_total") == 3
    assert of_group(node, "goq_group_acked_messages_total") == 1
    assert of_group(node, "goq_group_nacked_messages_total") == 1
    assert of_group(node, "goq_group_ready_messages") == 3
    assert of_group(node, "goq_group_blocked_messages") == 0
    assert of_group(node, "goq_group_waiting_receives") == 0
    eventually(lambda: metric(node, "goq_dead_letters", topic="t") == 1)
    assert of_group(node, "goq_group_dead_messages_total") == 1
    waiting = "goq_group_lane_waiting_messages"
    assert metric(node, waiting, topic="t", group="g", lane="high") == 2
    assert metric(node, waiting, topic="t", group="g", lane="normal") == 1
    waiting = "goq_group_tenant_waiting_messages"
    assert metric(node, waiting, topic="t", group="g", tenant="acme") == 2
    assert metric(node, waiting, topic="t", group="g", tenant="zen") == 1
    assert third["attempt"] == 1
    node.clock.ahead_ms = 90 * SECOND_MS
    eventually(lambda: of_group(node, "goq_group_expired_messages_total") == 1)
    eventually(lambda: metric(node, "goq_dead_letters", topic="t") == 2)
    node.call("DELETE", "/v1/topics/t/dead")
    assert metric(node, "goq_dead_letters", topic="t") == 0
    assert of_group(node, "goq_group_dead_messages_total") == 2


@pytest.mark.parametrize("has_consumer", [True, False])
def test_the_age_of_the_oldest_ready_message_grows_until_it_is_taken(
    node: RunningNode, has_consumer: bool
) -> None:
    name = "goq_group_oldest_ready_seconds"
    node.call("PUT", "/v1/topics/t/groups/g", {"settings": {"ordering": "none"}})
    if has_consumer:
        assert receive(node, "t", wait="0s") == []
    assert of_group(node, name) == 0
    publish(node, "t", "a")
    node.clock.ahead_ms = 100 * SECOND_MS
    publish(node, "t", "b")
    age_s = of_group(node, name)
    assert age_s is not None
    assert 100 <= age_s < 190
    receive(node, "t", max_messages=1, visibility="1h")
    age_s = of_group(node, name)
    assert age_s is not None
    assert 0 <= age_s < 90
    receive(node, "t", max_messages=1, visibility="1h")
    assert of_group(node, name) == 0


def test_what_retention_deletes_before_a_group_has_done_it_is_counted(node: RunningNode) -> None:
    name = "goq_group_deleted_unread_messages_total"
    node.call("PUT", "/v1/topics/t/groups/g", {"settings": {"ordering": "none"}})
    publish_segments(node, "t", range(6))
    first, second = receive(node, "t", max_messages=2, visibility="1h")
    settle(node, "t", "ack", first["receipt"])
    settle(node, "t", "nack", second["receipt"], delay="1h")
    assert of_group(node, name) == 0
    retire(node, "t", archive=False)
    assert of_topic(node, "goq_deleted_messages_total") == 5
    assert of_group(node, name) == 4


def test_groups_lanes_and_tenants_without_series_are_counted_or_wait_least(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("g", "h", "i"):
        node.call("PUT", f"/v1/topics/t/groups/{group}", {"settings": {"ordering": "none"}})
    publish(node, "t", *"abc", priority="low", tenant="many")
    publish(node, "t", "d", tenant="few")
    receive(node, "t", max_messages=1, visibility="1h")
    assert metric(node, "goq_metrics_omitted_groups") == 0
    monkeypatch.setattr(limits, "METRICS_GROUPS_MAX", 2)
    monkeypatch.setattr(limits, "METRICS_QUEUES_MAX", 1)
    assert metric(node, "goq_metrics_omitted_groups") == 1
    assert metric(node, "goq_group_lag_messages", topic="t", group="h") == 4
    assert metric(node, "goq_group_lag_messages", topic="t", group="i") is None
    tenants = "goq_group_tenant_waiting_messages"
    publish(node, "t", "e", tenant="few")
    assert metric(node, tenants, topic="t", group="h", tenant="many") == 3
    assert metric(node, tenants, topic="t", group="h", tenant="few") is None


def test_a_frame_that_is_sent_again_is_counted_once(node: RunningNode) -> None:
    body = f.placed(f.frame(b"a", b"b", producer=ProducerMark(7, 0, 0)), 0)
    for _ in range(3):
        assert node.request("POST", "/v1/topics/t/messages", body, f.FRAMES).status == 200
    assert of_topic(node, "goq_duplicate_frames_total") == 2
    assert of_topic(node, "goq_published_messages_total") == 2


def test_what_retention_deletes_and_archives_is_counted(node: RunningNode) -> None:
    publish_segments(node, "t", range(4))
    retire(node, "t", archive=True)
    assert of_topic(node, "goq_deleted_messages_total") == 3
    assert of_topic(node, "goq_archived_messages_total") == 3
    files = (node.data_dir / "archive").rglob("*.log.zst")
    assert of_topic(node, "goq_archive_bytes") == sum(path.stat().st_size for path in files) > 0
    publish_segments(node, "t", range(4, 6))
    retire(node, "t", archive=False)
    assert of_topic(node, "goq_deleted_messages_total") == 5
    assert of_topic(node, "goq_archived_messages_total") == 3
    assert of_topic(node, "goq_retention_stalls_total") == 0


def test_retention_that_finds_no_room_to_archive_is_counted(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    async def full(*_arguments: object) -> None:
        tries.append(None)
        raise OSError(errno.ENOSPC, "no space left on device")

    publish_segments(node, "t", range(3))
    monkeypatch.setattr(Archiver, "archive_segment", full)
    retire(node, "t", archive=True)
    assert of_topic(node, "goq_retention_stalls_total") == len(tries) > 0
    assert of_topic(node, "goq_deleted_messages_total") == 0


def test_requests_and_commits_are_counted_and_timed(node: RunningNode) -> None:
    route = "/v1/topics/{topic}/messages"
    labels = {"method": "POST", "route": route}
    commits = metric(node, "goq_commit_seconds_count")
    took_s = metric(node, "goq_commit_seconds_sum")
    assert commits is not None
    assert took_s is not None
    for _ in range(3):
        publish(node, "t", "m")
    assert metric(node, "goq_http_requests_total", status="200", **labels) == 3
    assert metric(node, "goq_http_request_seconds_count", **labels) == 3
    request_s = metric(node, "goq_http_request_seconds_sum", **labels)
    commit_s = metric(node, "goq_commit_seconds_sum")
    assert metric(node, "goq_commit_seconds_count") == commits + 3
    assert commit_s is not None
    assert request_s is not None
    assert 0 < commit_s - took_s < 30
    assert 0 < request_s < 30
    assert node.request("POST", "/v1/topics/t/messages", {"messages": []}).status == 400
    assert metric(node, "goq_http_requests_total", status="400", **labels) == 1


def test_what_connections_hold_is_counted(node: RunningNode) -> None:
    eventually(lambda: metric(node, "goq_http_connections") == 1)
    head = b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000\r\n"
    with closing(connect(node)) as uploads:
        uploads.sendall(head + b"Content-Type: application/json\r\n\r\n" + b"x" * 1_000)
        eventually(lambda: metric(node, "goq_http_bodies_bytes") == 1_000)
        assert metric(node, "goq_http_connections") == 2
    eventually(lambda: metric(node, "goq_http_bodies_bytes") == 0)
    publish(node, "t", *["x" * 500_000] * 30)
    with closing(socket.socket()) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.settimeout(30)
        reader.connect(node.address)
        reader.sendall(
            b"GET /v1/topics/t/messages?partition=0&limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        eventually(lambda: (metric(node, "goq_http_unsent_bytes") or 0) > 100_000)
    eventually(lambda: metric(node, "goq_http_unsent_bytes") == 0)


def test_the_longest_hold_of_the_event_loop_is_shown_for_its_route(node: RunningNode) -> None:
    background = {"method": "", "route": "(background)"}
    node.on_loop(lambda: time.sleep(1.0))
    # A timer sees it that is due at most 0.75 s after it was set, by a loop at rest.
    eventually(lambda: (metric(node, "goq_loop_stall_seconds", **background) or 0) > 0.2)
    assert (metric(node, "goq_loop_stall_seconds", **background) or 0) < 30


def test_holds_of_the_event_loop_are_counted_by_cause(node: RunningNode) -> None:
    def count(cause: str) -> float:
        return metric(node, "goq_loop_hold_seconds_count", cause=cause) or 0

    def collect() -> None:
        kept = [[] for _ in range(500_000)]
        gc.collect()
        kept.clear()

    before = {cause: count(cause) for cause in ("request", "garbage", "other")}
    node.on_loop(collect)
    eventually(lambda: count("garbage") > before["garbage"])
    eventually(lambda: count("other") > before["other"])
    head = {"value": "x" * 100, "headers": {f"h{n}": "v" for n in range(64)}}
    node.call("POST", "/v1/topics/t/messages", {"messages": [head] * 1000})
    assert count("request") > before["request"]


def test_a_scrape_looks_for_no_reference_cycles_and_the_node_does_again_after_it(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def generate(_registry: object) -> bytes:
        seen.append(gc.isenabled())
        return b""

    monkeypatch.setattr("goq.api.metrics.node.generate_latest", generate)
    assert gc.isenabled()
    for _ in range(2):
        assert node.request("GET", "/metrics").status == 200
        assert gc.isenabled()
    assert seen == [False, False]


def test_a_node_tells_what_runs_and_how_it_stands(node: RunningNode) -> None:
    python = sys.version.split()[0]
    assert metric(node, "goq_build_info", version=__version__, python=python) == 1
    assert metric(node, "goq_cluster_nodes", status="up") == 1
    assert metric(node, "goq_cluster_controller") == 1
    assert metric(node, "goq_cluster_diverged") == 0
