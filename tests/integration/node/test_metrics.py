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

from goq import __version__
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
    node.on_loop(lambda: time.sleep(0.4))
    eventually(lambda: metric(node, "goq_loop_stall_seconds", **background) is not None)
    assert 0.3 < (metric(node, "goq_loop_stall_seconds", **background) or 0) < 30


def test_holds_of_the_event_loop_are_counted_by_cause(node: RunningNode) -> None:
    def count(cause: str) -> float:
        return metric(node, "goq_loop_hold_seconds_count", cause=cause) or 0

    def collect() -> None:
        kept = [[] for _ in range(500_000)]  # type: ignore[var-annotated]
        gc.collect()
        kept.clear()

    before = {cause: count(cause) for cause in ("request", "garbage", "other")}
    node.on_loop(collect)
    eventually(lambda: count("garbage") > before["garbage"])
    eventually(lambda: count("other") > before["other"])
    head = {"value": "x" * 100, "headers": {f"h{n}": "v" for n in range(64)}}
    node.call("POST", "/v1/topics/t/messages", {"messages": [head] * 1000})
    assert count("request") > before["request"]


def test_a_node_tells_what_runs_and_how_it_stands(node: RunningNode) -> None:
    python = sys.version.split()[0]
    assert metric(node, "goq_build_info", version=__version__, python=python) == 1
    assert metric(node, "goq_cluster_nodes", status="up") == 1
    assert metric(node, "goq_cluster_controller") == 1
    assert metric(node, "goq_cluster_diverged") == 0
