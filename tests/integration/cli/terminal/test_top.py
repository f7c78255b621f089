"""``goq top``: one screen in a pipe and on a terminal, and JSON lines over a node's restart."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from goq.client import Client
from tests.support.cli.command import GOQ, Run
from tests.support.cli.forked_goq import start_goq
from tests.support.cli.pty import at_terminal
from tests.support.eventually import eventually
from tests.support.node.ports import HOST, reserved_port
from tests.support.node.running_node import running_node


@pytest.fixture
def busy(topic: str, environment: dict[str, str]) -> str:
    """A topic with a group that has three of five messages left."""
    with Client(environment["GOQ_SERVER"]) as client:
        client.create_topic(topic, partitions=1)
        for text in "abcde":
            client.publish(topic, text)
        for message in client.receive(topic, "billing", max_messages=2):
            message.ack()
        eventually(lambda: is_told(client, topic), "a state tells of the topic")
    return topic


def is_told(client: Client, name: str) -> bool:
    """Return whether a state, which may be half a second old, has a topic with its acks."""
    topics = client.get_live_state().topics
    return any(topic.name == name and topic.acked_messages == 2 for topic in topics)


def test_a_pipe_gets_tables_of_nodes_topics_and_groups(busy: str, goq: Run) -> None:
    printed = goq("top", "--once", "--interval", "500ms").stdout.decode()
    head, *tables = printed.split("\n\n")
    assert "1 node, " in head
    nodes, topics, groups = ([line.split("\t") for line in t.splitlines()] for t in tables)
    assert [nodes[0][0], topics[0][0], groups[0][:2]] == ["node", "topic", ["topic", "group"]]
    assert nodes[1][:2] == ["node-1", "up"]
    rows = {row[0]: dict(zip(topics[0], row, strict=True)) for row in topics[1:]}
    assert (rows[busy]["messages"], rows[busy]["publish/s"], rows[busy]["lag"]) == ("5", "0", "3")
    [row] = [dict(zip(groups[0], row, strict=True)) for row in groups[1:] if row[0] == busy]
    assert (row["group"], row["lag"], row["trend/s"], row["drains in"]) == (
        *("billing", "3", "0"),
        "never",
    )


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_one_screen_fits_a_terminal(busy: str, environment: dict[str, str], columns: int) -> None:
    screen = at_terminal(columns, environment, "top", "--once", "--interval", "500ms")
    assert screen.code == 0
    tables = screen.text.replace("\r\n", "\n").split("\n\n", 1)[1].splitlines()
    assert all(len(line) <= columns for line in tables if not line.startswith("too narrow"))
    assert any(line.startswith(busy) for line in tables)


def test_json_is_an_object_with_all_topics_groups_and_nodes(busy: str, goq: Run) -> None:
    [line] = goq("top", "--once", "--json", "--interval", "500ms").stdout.splitlines()
    found = json.loads(line)
    assert found["interval_s"] > 0
    assert found["nodes"][0]["cpu_percent"] >= 0
    [orders] = [each for each in found["topics"] if each["name"] == busy]
    assert (orders["published_per_s"], orders["messages"]) == (0, 5)
    assert (orders["groups"][0]["group"], orders["groups"][0]["lag"]) == ("billing", 3)


def test_topics_are_filtered_sorted_and_limited_by_the_node(busy: str, goq: Run) -> None:
    words = ("--interval", "500ms", "--sort", "lag", "--limit", "1")
    [line] = goq("top", "--once", "--json", *words, "--filter", busy.upper()).stdout.splitlines()
    found = json.loads(line)
    assert [each["name"] for each in found["topics"]] == [busy]
    assert (found["totals"]["topics"], found["totals"]["lag"]) == (1, 3)


def test_one_topic_is_told_with_its_lanes_and_tenants(
    busy: str, goq: Run, environment: dict[str, str]
) -> None:
    with Client(environment["GOQ_SERVER"]) as client:
        client.publish(busy, "urgent", priority="high", tenant="acme")
    words = ("top", "--once", "--interval", "500ms", "--topic", busy)
    *_, topics, _groups, waiting = goq(*words).stdout.decode().split("\n\n")
    assert [line.split("\t")[0] for line in topics.splitlines()] == ["topic", busy]
    rows = [line.split("\t") for line in waiting.splitlines()]
    assert rows[0] == ["group", "by", "name", "waiting", "leased"]
    assert ["billing", "lane", "high", "1", "0"] in rows
    assert ["billing", "tenant", "acme", "1", "0"] in rows


def test_json_lines_go_on_when_a_node_comes_back(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with reserved_port() as port:
        broker = {"listen": f"{HOST}:{port}"}
        server = f"http://{HOST}:{port}"
        with running_node(tmp_path / "data", broker=broker):
            process = start_goq(
                ["top", "--json", "--interval", "500ms"],
                stdout=subprocess.PIPE,
                env=environment | {"GOQ_SERVER": server},
            )
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["topics"] == []
        try:
            with running_node(tmp_path / "data", broker=broker):
                with Client(server) as client:
                    client.create_topic("created-later")
                moments = (json.loads(line) for line in process.stdout)
                assert any(moment["topics"] for moment in moments)
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--once", "--interval", "499ms"), b"between 500ms and 1m"),
        (("--once", "--interval", "60001ms"), b"between 500ms and 1m"),
        (("--once", "--interval", "soon"), b"not a duration"),
        (("--once", "--sort", "size"), b"none of publish, deliver"),
        (("--once", "--limit", "0"), b"not between 1 and"),
        (("--once", "--filter", "x" * 201), b"at most 200 characters"),
        ((), b"needs a terminal: say --once, or --json"),
    ],
)
def test_wrong_usage_says_what_to_do(words: tuple[str, ...], told: bytes) -> None:
    failed = subprocess.run([*GOQ, "top", *words], capture_output=True, timeout=60, check=False)
    assert failed.returncode in (2, 7)
    assert told in failed.stderr


def test_a_node_that_is_away_is_an_error_of_one_screen(environment: dict[str, str]) -> None:
    away = environment | {"GOQ_SERVER": f"http://{HOST}:1"}
    failed = subprocess.run(
        [*GOQ, "top", "--once"], env=away, capture_output=True, timeout=60, check=False
    )
    assert (failed.returncode, failed.stdout) == (5, b"")
    assert b"127.0.0.1:1" in failed.stderr
