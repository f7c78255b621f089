"""The client gives messages up, and looks at, puts back and purges what died."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from goq.client import AsyncClient, Client
from goq.errors import InvalidInput, LeaseLost, TopicNotFound
from tests.support.eventually import eventually, until
from tests.support.node.running_node import running_node

PATIENCE_S = 60.0
MINUTE = timedelta(minutes=1)


def dead(client: Client, count: int, **wanted: str) -> list[str]:
    eventually(lambda: len(client.list_dead_letters("t", **wanted).messages) >= count)
    found = client.list_dead_letters("t", **wanted).messages
    return [(letter.value or b"").decode() for letter in found]


def test_a_rejected_message_dies_and_comes_back_and_is_purged() -> None:
    with running_node() as node, Client(node.url) as client:
        client.publish_many("t", [b"a", b"b", b"c"])
        first, *others = client.receive("t", "g", wait="5s")
        first.reject("no such article")
        with pytest.raises(LeaseLost):
            first.reject()
        client.reject("t", "g", [m.receipt for m in others], reason="too old")
        assert sorted(dead(client, 3)) == ["a", "b", "c"]
        assert dead(client, 1, reason="article") == [(first.value or b"").decode()]
        assert client.redrive_dead_letters("t", reason="article", dry_run=True).redriven == 1
        assert client.redrive_dead_letters("t", reason="article").redriven == 1
        [again] = client.receive("t", "g", wait="5s")
        assert again.value == first.value
        assert dict(again.headers)["goq-redrive-group"] == b"g"
        assert client.purge_dead_letters("t", group="g").purged == 2
        assert client.list_dead_letters("t.dlq").messages == ()
        with pytest.raises(TopicNotFound):
            client.redrive_dead_letters("none")
        with pytest.raises(InvalidInput):
            client.list_dead_letters("t", cause="bad")


def test_dead_letters_are_chosen_by_what_a_message_has() -> None:
    with running_node() as node, Client(node.url) as client:
        client.create_topic("t", 1)
        client.publish("t", b"a", key="k")
        client.publish("t", b"b", key="l")
        first, second = client.receive("t", "g", wait="5s")
        client.reject_many([first, second])
        dead(client, 2)
        [letter] = client.list_dead_letters("t", ids=[first.id]).messages
        assert (letter.key, letter.origin) == (b"k", first.id)
        assert letter.died_at is not None
        chosen: list[dict[str, Any]] = [
            {"ids": [first.id]},
            {"ids": letter.id},
            {"key": letter.key},
            {"key": "k", "from_time": letter.died_at - MINUTE},
            {"key": "k", "to_time": (letter.died_at + MINUTE).timestamp() * 1000},
        ]
        for wanted in chosen:
            assert client.redrive_dead_letters("t", dry_run=True, **wanted).redriven == 1
            assert client.purge_dead_letters("t", dry_run=True, **wanted).purged == 1
        late = letter.died_at.timestamp() * 1000 + 60_000
        assert client.redrive_dead_letters("t", from_time=late).redriven == 0


def test_the_asynchronous_client_does_the_same() -> None:
    async def main(url: str) -> None:
        async with AsyncClient(url) as client:
            await client.publish("t", b"a")
            [message] = await client.receive("t", "g", wait="5s")
            await message.reject("bad")

            async def is_dead() -> bool:
                found = await client.list_dead_letters("t", ids=[str(message.id)])
                return bool(found.messages)

            await until(is_dead, seconds=PATIENCE_S)
            assert (await client.redrive_dead_letters("t", ids=[str(message.id)])).redriven == 1

    with running_node() as node:
        asyncio.run(main(node.url))
