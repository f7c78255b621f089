"""Consumers of a topic with an offline partition: told of it, and never that all is done."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from goq.client import Client
from goq.errors import PartitionOffline
from tests.support.api.calls import publish, receive, values
from tests.support.cli.command import GOQ
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import topic_dir

RECEIVE = "/v1/topics/t/groups/g/receive"


@contextmanager
def with_dead(path: Path, *numbers: int) -> Iterator[RunningNode]:
    """Run a node whose topic ``t`` has two partitions, some of which cannot be opened."""
    with running_node(path) as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 2})
        for number in (0, 1):
            publish(node, "t", f"in {number}", "more", partition=number)
    for number in numbers:
        (topic_dir(path, "t") / str(number) / "messages" / f"{1:020d}.log").write_bytes(b"x")
    with running_node(path) as node:
        yield node


@pytest.mark.parametrize("wait", ["0s", "100ms"])
def test_a_receive_without_messages_is_refused_while_a_partition_is_offline(
    tmp_path: Path, wait: str
) -> None:
    with with_dead(tmp_path, 1) as node:
        assert values(receive(node, "t", wait=wait)) == ["in 0", "more"]
        answer = node.request("POST", RECEIVE, {"wait": wait})
        assert (answer.status, answer.json["code"]) == (503, "partition_offline")
        assert "retry-after" in answer.headers
        assert "partition 1 of t is offline" in answer.json["detail"]


def test_nothing_is_waited_for_when_all_partitions_are_offline(tmp_path: Path) -> None:
    with with_dead(tmp_path, 0, 1) as node:
        began_s = time.monotonic()
        for asked in ({"wait": "30s"}, {"stream": True}):
            answer = node.request("POST", RECEIVE, asked)
            assert (answer.status, answer.json["code"]) == (503, "partition_offline")
        assert time.monotonic() - began_s < 15


@pytest.mark.parametrize("query", ["key=k", "dedup_id=d", "header=a%3Db"])
def test_a_search_that_may_miss_a_message_is_refused(tmp_path: Path, query: str) -> None:
    with with_dead(tmp_path, 1) as node:
        answer = node.request("GET", f"/v1/topics/t/trace?{query}")
        assert (answer.status, answer.json["code"]) == (503, "partition_offline")
    with with_dead(tmp_path / "sound") as node:
        assert node.request("GET", f"/v1/topics/t/trace?{query}").status == 404


GROUP_PATH = "/v1/topics/t/groups"
WHOLE = {
    "groups": GROUP_PATH,
    "group": f"{GROUP_PATH}/g",
    "peek": f"{GROUP_PATH}/g/peek?state=ready",
    "scheduled": "/v1/topics/t/scheduled",
    "history": "/v1/topics/t/history",
    "grep": "/v1/topics/t/search?text=in",
    "producer": "/v1/topics/t/producers/7",
}


def test_what_is_said_of_a_whole_topic_is_refused_while_a_partition_is_offline(
    tmp_path: Path,
) -> None:
    with running_node(tmp_path) as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 2})
        publish(node, "t", "in 1", "more", partition=1)
        node.call("PUT", f"{GROUP_PATH}/g", {"settings": {}})
        sound = {what: node.request("GET", path).status for what, path in WHOLE.items()}
    assert sound == dict.fromkeys(WHOLE, 200)
    (topic_dir(tmp_path, "t") / "1" / "messages" / f"{1:020d}.log").write_bytes(b"x")
    with running_node(tmp_path) as node:
        answers = {what: node.request("GET", path) for what, path in WHOLE.items()}
        codes = {what: answer.json.get("code") for what, answer in answers.items()}
        assert codes == dict.fromkeys(WHOLE, "partition_offline")
        reset = f"{GROUP_PATH}/g/reset"
        assert node.request("POST", reset, {"to": "earliest"}).status == 503
        assert node.request("POST", reset, {"to": "earliest", "partition": 0}).status == 200
        node.call("GET", "/v1/topics/t")


def test_only_the_owner_of_an_offline_partition_is_told(tmp_path: Path) -> None:
    with with_dead(tmp_path, 1) as node:
        group = "/v1/topics/t/groups/g"
        node.call("PUT", group, {"settings": {"ordering": "partition"}})
        for name in ("a", "b"):
            node.call("POST", f"{group}/members", {"consumer": name})
        members = node.call("GET", f"{group}/members")["members"]
        (other,) = (each["consumer"] for each in members if 0 in each["partitions"])
        for name in ("a", "b"):
            node.request("POST", RECEIVE, {"consumer": name})
            answer = node.request("POST", RECEIVE, {"consumer": name})
            assert answer.status == (200 if name == other else 503)


def test_until_empty_does_not_take_a_dead_disk_for_all_done(tmp_path: Path) -> None:
    with with_dead(tmp_path, 1) as node, Client(node.url, retries="0s") as client:
        found = client.consume("t", group="g", until_empty=True)
        assert [next(found).value, next(found).value] == [b"in 0", b"more"]
        with pytest.raises(PartitionOffline):
            next(found)


@pytest.mark.long
def test_consume_exits_with_5_when_it_cannot_say_that_a_topic_is_empty(tmp_path: Path) -> None:
    with with_dead(tmp_path, 1) as node:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GOQ_")}
        done = subprocess.run(
            [*GOQ, "consume", "t", "--group", "g", "--until-empty", "--retry-for", "2s"],
            capture_output=True,
            env=kept | {"GOQ_SERVER": node.url, "XDG_CONFIG_HOME": str(tmp_path)},
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (5, b"in 0\nmore\n")
        assert b"partition 1 of t is offline" in done.stderr
