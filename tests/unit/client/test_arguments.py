"""Arguments of the wrong kind are refused by name, before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from goq.client import AsyncClient, Client
from goq.errors import InvalidInput

NOWHERE = "http://127.0.0.1:1"
"""A request to it would raise ``Unavailable``."""

Call = Callable[[Any], object]
CALLS: dict[str, Call] = {
    "settings": lambda q: q.create_topic("t", settings=["fsync=never"]),
    "settings.retention.age": lambda q: q.create_topic(
        "t", settings={"retention.age": timedelta(days=1)}
    ),
    "settings of a group": lambda q: q.set_group_config("t", "g", "max_attempts=3"),
    "settings of a restore": lambda q: q.restore_topic("t", "u", settings="fsync=never"),
    "name": lambda q: q.create_topic(b"t"),
    "unset": lambda q: q.alter_topic("t", unset=5),
    "partition of a topic": lambda q: q.reopen_partition("t", "0"),
    "partition of a move": lambda q: q.cancel_reassignment("t", "0/.."),
    "replicas": lambda q: q.reassign_partition("t", 0, 5),
    "allow": lambda q: q.create_token("x", 5),
    "quotas": lambda q: q.create_token("x", ["read:*"], quotas=5),
    "grace": lambda q: q.rotate_token("x", grace="soon"),
    "token_id": lambda q: q.revoke_token(5),
    "values": lambda q: q.create_schedule("s", "t", 5, every="5m"),
    "values of a list": lambda q: q.create_schedule("s", "t", [5], every="5m"),
    "headers": lambda q: q.create_schedule("s", "t", "x", every="5m", headers="a=b"),
    "messages[0].key": lambda q: q.create_schedule("s", "t", "x", every="5m", key=b"k"),
    "priority": lambda q: q.set_message_priority("t:0:0", b"high"),
    "reason": lambda q: q.cancel_message("t:0:0", reason=b"late"),
    "limit": lambda q: q.peek("t", limit="5"),
    "wait_ms": lambda q: q.get_trace("t:0:0", wait_ms="5s"),
    "seen": lambda q: q.get_trace("t:0:0", seen=["one"]),
    "header": lambda q: q.search_traces("t", header="source=shop"),
    "dedup_id": lambda q: q.search_traces("t", dedup_id=b"d"),
    "dedup_id that is no text": lambda q: q.search_traces("t", dedup_id="\ud800"),
    "parts": lambda q: q.search_messages("t", "x", parts=5),
    "ids": lambda q: q.purge_dead_letters("t", ids=5),
    "key": lambda q: q.redrive_dead_letters("t", key=b"\xff"),
    "from_time": lambda q: q.list_dead_letters("t", from_time=[1]),
    "topics": lambda q: q.get_live_state(5),
    "interval_ms": lambda q: q.get_live_state(interval_ms="1s"),
    "before_wait": lambda q: q.consume("t", group="g", before_wait=5),
    "after_wait": lambda q: q.consume("t", group="g", after_wait="settle"),
    "before_end": lambda q: q.consume("t", group="g", before_end=5),
    "before_wait of a log": lambda q: q.read_log("t", before_wait=5),
    "on_damage": lambda q: q.read_log("t", on_damage=5),
    "on_published": lambda q: q.producer("t", on_published=5),
    "group": lambda q: q.consume("t", group=None),
    "topics of a loop": lambda q: q.consume("no topic", group="g"),
    "topics of a log": lambda q: q.read_log("no topic"),
    "prefetch": lambda q: q.consume("t", group="g", prefetch=0),
    "max_messages": lambda q: q.receive("t", "g", max_messages=-1),
    "messages": lambda q: q.ack_many(["0:1:0"]),
    "messages to release": lambda q: q.release_many(["0:1:0"]),
    "messages that are none": lambda q: q.nack_many(None),
    "replay": lambda q: q.replay_into("t", "u"),
    "replay to read": lambda q: q.read_replay("t"),
    "value": lambda q: q.publish("t", 5),
    "key of a publish": lambda q: q.publish("t", "x", key=5),
    "headers of a publish": lambda q: q.publish("t", "x", headers={"a": 5}),
    "from_offset": lambda q: q.replay("t", from_offset="0"),
    "partition": lambda q: q.replay("t", from_offset=0, partition="0"),
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(NOWHERE, retries=0, connect_retries=0) as client:
        yield client


@pytest.mark.parametrize("what", CALLS)
def test_an_argument_of_the_wrong_kind_is_named(client: Client, what: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        CALLS[what](client)
    assert caught.value.field == what.partition(" ")[0]


@pytest.mark.parametrize("what", ["settings", "header", "grace", "before_wait"])
def test_the_asynchronous_client_names_it_too(what: str) -> None:
    async def main() -> None:
        async with AsyncClient(NOWHERE, retries=0, connect_retries=0) as client:
            await CALLS[what](client)

    with pytest.raises(InvalidInput) as caught:
        asyncio.run(main())
    assert caught.value.field == what


def test_what_a_client_calls_back_is_a_function() -> None:
    with pytest.raises(InvalidInput) as caught:
        Client(NOWHERE, on_retry=5)
    assert caught.value.field == "on_retry"
