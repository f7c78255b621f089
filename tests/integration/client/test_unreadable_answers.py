"""Answers that are not goq's: every call ends in an error of goq, a write in an unknown outcome."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from goq.client import Client
from goq.errors import GoqError, TimedOut, Unavailable
from tests.support.client.fake_node import FakeNode
from tests.support.client.scripted_server import ScriptedServer, ok

BODIES = {
    "empty": b"",
    "page": b"<html>Welcome</html>",
    "object": b"{}",
    "list": b"[]",
    "null": b"null",
    "latin": '{"name": "café", "results": ["café"], "settled": "é"}'.encode("latin-1"),
    "deep": b"[" * 100_000,
    "wrong": json.dumps({"partitions": [{}], "settings": {}, "messages": [{}]}).encode(),
}
TOPIC = json.dumps({"name": "t", "partitions": [{"partition": 0}], "settings": {}}).encode()
RECEIPT = "0:1:0"

Call = Callable[[Client], object]
READS: dict[str, Call] = {
    "list_topics": lambda q: q.list_topics(),
    "describe_topic": lambda q: q.describe_topic("t"),
    "describe_group": lambda q: q.describe_group("t", "g"),
    "get_message": lambda q: q.get_message("t:0:0"),
    "peek": lambda q: q.peek("t"),
    "read": lambda q: q.read("t", partition=0),
    "read_log": lambda q: list(q.read_log("t")),
    "receive": lambda q: q.receive("t", "g"),
    "consume": lambda q: list(q.consume("t", group="g", until_empty=True)),
}
PUBLISHES: dict[str, Call] = {
    "publish": lambda q: q.publish("t", b"v"),
    "publish_many": lambda q: q.publish_many("t", [b"v"]),
    "publish_with_options": lambda q: q.publish("t", b"v", delay="1m"),
}
SETTLEMENTS: dict[str, Call] = {
    verb: lambda q, verb=verb: getattr(q, verb)("t", "g", [RECEIPT])
    for verb in ("ack", "nack", "reject", "extend")
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("call", [*READS.values(), *PUBLISHES.values()], ids=[*READS, *PUBLISHES])
def test_a_first_answer_that_cannot_be_read_is_an_error_of_goq(call: Call, body: bytes) -> None:
    with (
        ScriptedServer(*[[[ok(body)]] * 3] * 3) as server,
        Client(server.url, retries=0) as client,
        pytest.raises(GoqError),
    ):
        call(client)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("call", PUBLISHES.values(), ids=PUBLISHES)
def test_a_publish_whose_answer_cannot_be_read_may_have_been_done(call: Call, body: bytes) -> None:
    script = [[ok(TOPIC)], [ok(body)]]
    with (
        ScriptedServer(script) as server,
        Client(server.url, retries=0) as client,
        pytest.raises(TimedOut, match="not known"),
    ):
        call(client)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("call", SETTLEMENTS.values(), ids=SETTLEMENTS)
def test_a_settlement_whose_answer_cannot_be_read_may_have_been_done(
    call: Call, body: bytes
) -> None:
    with (
        ScriptedServer([[ok(body)]]) as server,
        Client(server.url, retries=0) as client,
        pytest.raises(TimedOut, match="not known"),
    ):
        call(client)


def test_every_call_ends_in_an_error_of_goq_when_the_node_goes_away() -> None:
    for call in [*READS.values(), *PUBLISHES.values(), *SETTLEMENTS.values()]:
        with FakeNode() as node, Client(node.url, retries="50ms", timeout="1s") as client:
            node.create("t")
            client.publish("t", b"known")
            node.__exit__()
            with pytest.raises((Unavailable, TimedOut)):
                call(client)
