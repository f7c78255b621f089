"""Durations and times of the standard library, in every call that takes one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from goq.client import Client
from goq.errors import GoqError
from tests.support.node.running_node import running_node

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with running_node() as node, Client(node.url, timeout=30 * SECOND, retries=SECOND) as client:
        client.create_topic("t", 1)
        client.publish("t", b"first")
        client.receive("t", "g", visibility=HOUR)
        yield client


def past() -> datetime:
    return datetime.now(UTC) - HOUR


def future() -> datetime:
    return datetime.now(UTC) + HOUR


def test_messages_are_published_and_settled_with_them(client: Client) -> None:
    client.create_topic("own", 1)
    client.publish("own", b"later", delay=HOUR)
    client.publish("own", b"later", deliver_at=future())
    client.publish("own", b"now", ttl=HOUR)
    with client.producer("own", linger=SECOND / 100) as producer:
        producer.send(b"later", delay=HOUR)
    options = {"visibility": HOUR, "timeout": 60 * SECOND, "wait": SECOND / 4}
    [message] = client.consume("own", group="g", max_messages=1, **options)
    message.extend(2 * HOUR)
    message.nack(delay=HOUR)
    assert client.describe_group("own", "g").retry == 1
    scheduled = client.list_scheduled("own", until=future() + HOUR).messages
    assert len(scheduled) == 3
    client.reschedule_message(scheduled[0].raw["id"], future())


def test_the_log_is_read_between_them(client: Client) -> None:
    assert [m.value for m in client.read_log("t", from_time=past(), to_time=future())] == [b"first"]
    assert client.replay("t", from_time=past()) is not None
    assert client.describe_group("t", "g", as_of=datetime.now(UTC)).lag == 1
    client.reset_group("t", "g", to=past(), dry_run=True)


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_times_of_a_read_that_count_from_now_are_by_the_clock_of_the_node(ahead: timedelta) -> None:
    with running_node() as node, Client(node.url) as client:
        client.create_topic("t", 1)
        node.clock.ahead_ms = int((ahead - HOUR / 6) / timedelta(milliseconds=1))
        client.publish("t", b"old")
        node.clock.ahead_ms = int(ahead / timedelta(milliseconds=1))
        client.publish("t", b"new")

        def read(**times: str) -> list[bytes | None]:
            page = client.read("t", partition=0, **times)
            values = [message.value for message in page.messages]
            assert [message.value for message in client.read_log("t", **times)] == values
            return values

        assert read(from_time="-1m") == [b"new"]
        assert read(to_time="-1m") == [b"old"]
        assert read(from_time="now") == []


def test_a_log_that_is_followed_from_now_on_has_what_comes_to_a_topic_that_is_created_later() -> (
    None
):
    with running_node() as node, Client(node.url) as client:
        node.clock.ahead_ms = -3_600_000
        taken: list[bytes | None] = []

        def follow() -> None:
            for message in client.read_log("t*", from_time="now", follow=True):
                taken.append(message.value)
                if message.value == b"last":
                    return

        client.create_topic("t1", 1)
        client.publish("t1", b"before")
        thread = threading.Thread(target=follow)
        thread.start()
        while not taken:
            client.publish("t1", b"new")
        client.publish("t2", b"last")
        thread.join(30)
        assert set(taken) == {b"new", b"last"}


def test_a_token_and_its_secrets_last_as_long_as_they_say(client: Client) -> None:
    made = client.create_token("shop", "read:orders", expires=HOUR)
    assert made.allow == ("read:orders",)
    assert client.rotate_token(made.id, grace=HOUR / 2).token != made.token


Call = Callable[[Client, Any], object]
CALLS: dict[str, Call] = {
    "delay": lambda q, bad: q.publish("t", b"", delay=bad),
    "deliver_at": lambda q, bad: q.publish("t", b"", deliver_at=bad),
    "ttl": lambda q, bad: q.publish("t", b"", ttl=bad),
    "visibility": lambda q, bad: q.receive("t", "g", visibility=bad),
    "wait": lambda q, bad: q.receive("t", "g", wait=bad),
    "timeout": lambda q, bad: q.consume("t", group="g", timeout=bad),
    "linger": lambda q, bad: q.producer("t", linger=bad),
    "from_time": lambda q, bad: list(q.read_log("t", from_time=bad)),
    "replay": lambda q, bad: q.replay("t", from_time=bad),
    "as_of": lambda q, bad: q.describe_group("t", "g", as_of=bad),
    "to": lambda q, bad: q.reset_group("t", "g", to=bad),
    "retries": lambda _, bad: Client(retries=bad),
}


@pytest.mark.parametrize(
    "bad", [object(), b"1s", "soon", [1]], ids=["object", "bytes", "text", "list"]
)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_neither_is_an_error_of_goq(client: Client, call: Call, bad: object) -> None:
    with pytest.raises(GoqError):
        call(client, bad)


def test_a_time_without_a_zone_is_refused_everywhere(client: Client) -> None:
    naive = datetime(2026, 1, 1)
    for name in ("deliver_at", "from_time", "replay", "as_of", "to"):
        with pytest.raises(GoqError, match="has no zone"):
            CALLS[name](client, naive)
