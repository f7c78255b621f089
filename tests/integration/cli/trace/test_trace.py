"""``goq trace`` from end to end: real messages on a real node."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.support.cli.command import Run
from tests.support.cli.forked_goq import start_goq
from tests.support.eventually import eventually


@pytest.fixture
def orders(goq: Run, topic: str) -> str:
    """A topic of one partition, where a message that fails is put aside at once."""
    goq("topic", "create", topic, "--partitions", "1")
    goq("group", "set", "billing", "--topic", topic, "max_attempts=1")
    return topic


def publish(goq: Run, topic: str, *options: str, value: bytes = b"v\n") -> str:
    """Publish a message; return its id."""
    done = goq("produce", topic, "--client-id", "shop", "--print-ids", *options, stdin=value)
    return done.stdout.decode().strip()


def work(goq: Run, topic: str, command: str = "true", group: str = "billing") -> None:
    """Let a worker handle all there is."""
    options = ("--group", group, "--client-id", "till-1", "--until-empty", "--exec", command)
    goq("consume", topic, *options, code=1 if command.endswith("exit 1") else 0)


def told(goq: Run, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(goq("trace", *arguments, "--json").stdout)
    return found


def names(trace: dict[str, Any]) -> list[str]:
    return [event["event"] for event in trace["events"]]


def ids(trace: dict[str, Any]) -> set[str]:
    return {event["id"] for event in trace["events"]}


def test_a_message_that_was_handled_shows_who_did_what(goq: Run, orders: str) -> None:
    message_id = publish(goq, orders, "--key", "order-123")
    work(goq, orders)
    trace = told(goq, message_id)
    assert names(trace) == ["PUBLISHED", "DELIVERED", "ACKNOWLEDGED"]
    published, delivered, acknowledged = trace["events"]
    assert (published["producer"], trace["message"]["producer"]) == ("shop", "shop")
    for event in (delivered, acknowledged):
        assert (event["group"], event["consumer"]) == ("billing", "till-1")
    assert (delivered["attempt"], trace["attempts"], trace["incomplete"]) == (1, 1, [])
    assert trace["message"]["key"] == "order-123"
    lines = goq("trace", message_id).stdout.decode().splitlines()
    assert lines[0] == f"Message    {message_id}"
    assert lines[1].startswith("Key        order-123        Lane normal      Size ")
    took_s = trace["publish_to_ack_ms"] / 1000
    assert lines[-1] == f"1 attempt · {took_s:.3f} s from publish to ack"


def test_a_message_is_followed_into_dead_letters_and_back(goq: Run, orders: str) -> None:
    message_id, dead, back = publish(goq, orders), f"{orders}.dlq:0:0", f"{orders}:0:1"
    work(goq, orders, "echo 'out of stock' >&2; exit 1")
    eventually(lambda: dead in ids(told(goq, message_id)), "it is a dead letter")
    goq("dlq", "redrive", orders)
    eventually(lambda: back in ids(told(goq, message_id)), "it is back")
    work(goq, orders)
    trace = told(goq, message_id)
    found = names(trace)
    for name in ("DELIVERED", "DEAD_LETTERED", "REDRIVEN", "ACKNOWLEDGED"):
        assert name in found
    assert found.index("DEAD_LETTERED") < found.index("REDRIVEN") < found.index("ACKNOWLEDGED")
    assert ids(trace) == {message_id, dead, back}
    text = goq("trace", message_id).stdout.decode()
    assert "out of stock" in text
    assert f"id={dead}" in text


@pytest.mark.parametrize("by", ["key", "dedup-id", "header"])
def test_messages_are_found_by_what_is_known_of_them(goq: Run, orders: str, by: str) -> None:
    line = {"value": "v", "key": "k-1", "dedup_id": "d-1", "headers": {"source": "web"}}
    other = {"value": "v", "key": "k-2", "dedup_id": "d-2", "headers": {"source": "app"}}
    lines = b"".join(json.dumps(each).encode() + b"\n" for each in (line, other))
    publish(goq, orders, "--jsonl", value=lines)
    wanted = {"key": "k-1", "dedup-id": "d-1", "header": "source=web"}[by]
    found = told(goq, orders, f"--{by}", wanted)
    assert [trace["message"]["id"] for trace in found["traces"]] == [f"{orders}:0:0"]
    goq("trace", orders, f"--{by}", "x=nobody has this", code=3)


def test_the_newest_of_several_comes_first(goq: Run, orders: str) -> None:
    ids = [publish(goq, orders, "--key", "k") for _ in range(3)]
    found = told(goq, orders, "--key", "k", "--limit", "2")
    assert [trace["message"]["id"] for trace in found["traces"]] == ids[:0:-1]


def test_an_unknown_message_is_not_found(goq: Run, orders: str) -> None:
    publish(goq, orders)
    done = goq("trace", f"{orders}:0:99", code=3)
    assert done.stdout == b""
    assert done.stderr.startswith(b"goq: ")
    goq("trace", "nothing-of-this-name:0:0", code=3)
    goq("trace", "nothing-of-this-name", "--key", "k", code=3)


def test_a_message_is_followed_while_it_is_handled(
    goq: Run, orders: str, environment: dict[str, str]
) -> None:
    message_id = publish(goq, orders)
    follower = start_goq(
        ["trace", message_id, "--follow", "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["event"] == "PUBLISHED"
    work(goq, orders)
    assert [json.loads(follower.stdout.readline())["event"] for _ in range(2)] == [
        "DELIVERED",
        "ACKNOWLEDGED",
    ]
    follower.send_signal(2)
    assert follower.communicate(timeout=30) == (b"", b"")
    assert follower.returncode == 130
