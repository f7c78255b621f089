"""``goq republish``: from an export and from a node, said first, done once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from goq.client import Client
from goq.units import format_time_us
from tests.support.node.running_node import RunningNode
from tests.support.pipeline.goq_command import Goq


def publish(node: RunningNode, topic: str, count: int) -> None:
    with Client(node.url) as client, client.producer(topic) as producer:
        for number in range(count):
            producer.send(f"v{number}", key=f"k{number}", tenant="acme" if number % 2 else None)


def rows(out: str, title: str) -> list[dict[str, Any]]:
    (section,) = [each for each in json.loads(out)["sections"] if each["title"] == title]
    found: list[dict[str, Any]] = section["rows"]
    return found


def logged(node: RunningNode, topic: str) -> list[bytes]:
    with Client(node.url) as client:
        return sorted(message.value or b"" for message in client.read_log(topic))


def test_a_slice_of_an_export_is_shown_then_published_and_once_only(
    goq: Goq, node: RunningNode, topic: str, tmp_path: Path
) -> None:
    publish(node, topic, 20)
    folder, into = str(tmp_path / "lake"), f"{topic}-again"
    goq("export", topic, "--to", folder)
    words = ["republish", "SELECT * FROM messages WHERE tenant = 'acme'"]
    words += ["--from", folder, "--into", into, "--json"]
    out, err = goq(*words, "--dry-run")
    assert rows(out, "Messages")[0]["messages"] == 10
    assert f"there is no topic {into} yet" in err
    with Client(node.url) as client:
        assert into not in {each.name for each in client.list_topics()}
    out, err = goq(*words)
    (done,) = rows(out, "Republished")
    assert (done["messages"], done["outcome"]) == (10, "stored")
    assert f"--txn-id {done['txn_id']}" in err
    out, err = goq(*words)
    assert (rows(out, "Republished"), "was done before" in err) == (
        [{**done, "outcome": "known"}],
        True,
    )
    assert logged(node, into) == sorted(b"v%d" % number for number in range(1, 20, 2))


def test_a_slice_of_a_node_goes_back_into_its_own_topic(
    goq: Goq, node: RunningNode, topic: str
) -> None:
    publish(node, topic, 9)
    query = "SELECT * FROM messages WHERE offset = 0"
    out, _ = goq("republish", query, topic, "--into", topic, "--txn-id", "first ones")
    assert "first ones" in out
    with Client(node.url) as client:
        first = [m for m in client.read_log(topic) if m.offset == 0]
        copies = [m for m in client.read_log(topic) if m.headers]
    assert {str(m.id) for m in first} == {
        dict(m.headers)["goq-replayed-from"].decode() for m in copies
    }
    assert len(copies) == len(first)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("SELECT * FROM messages", "{topic}"), 2, "--into TOPIC"),
        (("SELECT * FROM messages", "--into", "x"), 2, "--from DIR, or topics"),
        (("SELECT * FROM messages", "nope", "--into", "{topic}"), 3, "no topic 'nope'"),
        (("SELECT * FROM messages", "--from", "/nope", "--into", "{topic}"), 7, "is no export"),
        (("SELECT * FROM nope", "{topic}", "--into", "{topic}"), 7, "TABLE_OR_VIEW_NOT_FOUND"),
        (("SELECT 1 AS n FROM messages", "{topic}", "--into", "{topic}"), 7, "a column 'n'"),
        (("SELECT *", "{topic}", "--into", "bad name"), 7, "bad name"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    goq: Goq, topic: str, words: tuple[str, ...], code: int, said: str
) -> None:
    out, err = goq("republish", *(word.replace("{topic}", topic) for word in words), code=code)
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("goq: ")]
    assert len(lines) == 1
    assert said in lines[0]


def test_a_wrong_query_leaves_no_target(goq: Goq, topic: str, node: RunningNode) -> None:
    into = f"{topic}-new"
    for query in ("SELECT * FROM nope", "SELECT 1 AS n FROM messages", "SELEKT"):
        goq("republish", query, topic, "--into", into, code=7)
    with Client(node.url) as client:
        assert into not in {each.name for each in client.list_topics()}


def test_only_a_span_of_a_topic_is_read_from_the_node(
    goq: Goq, node: RunningNode, topic: str
) -> None:
    publish(node, topic, 3)
    with Client(node.url) as client:
        last = max(message.timestamp for message in client.read_log(topic))
    publish(node, topic, 3)
    words = ("republish", "SELECT * FROM messages", topic, "--into", topic, "--dry-run", "--json")
    since = format_time_us(last + 1)
    out, _ = goq(*words, "--since", since)
    assert rows(out, "Messages")[0]["messages"] == 3
    out, _ = goq(*words, "--until", since)
    assert rows(out, "Messages")[0]["messages"] == 3
    goq(*words, "--from", "lake", "--since", since, code=2)


def test_another_span_is_another_slice_and_is_not_taken_for_the_one_published_before(
    goq: Goq, node: RunningNode, topic: str
) -> None:
    publish(node, topic, 3)
    with Client(node.url) as client:
        last = max(message.timestamp for message in client.read_log(topic))
    words = ("republish", "SELECT * FROM messages", topic, "--into", f"{topic}-again", "--json")
    until = format_time_us(last + 1)
    for outcome in ("stored", "known"):
        out, _ = goq(*words, "--until", until)
        assert rows(out, "Republished")[0]["outcome"] == outcome
    publish(node, topic, 2)
    out, _ = goq(*words, "--since", until)
    (done,) = rows(out, "Republished")
    assert (done["messages"], done["outcome"]) == (2, "stored")
    assert len(logged(node, f"{topic}-again")) == 5


def test_a_target_that_the_node_does_not_make_is_said_before_anything_is_read(
    goq: Goq, topic: str, monkeypatch: pytest.MonkeyPatch, node: RunningNode
) -> None:
    monkeypatch.setattr(node.node.broker.topic_admin, "_auto_create", False)
    words = ("republish", "SELECT * FROM messages", topic, "--into", "nowhere")
    _, err = goq(*words, code=3)
    assert "there is no topic 'nowhere'" in err
