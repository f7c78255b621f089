"""What a test leaves to the next one with the fixtures: nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import goq
from goq.pytest_plugin import isolated_client
from tests.support.eventually import eventually


@pytest.fixture
def node() -> Iterator[goq.Node]:
    with goq.Node.temporary() as node:
        yield node


def topics(client: goq.Client) -> list[str]:
    return sorted(each.name for each in client.list_topics() if each.name[:2] != "__")


def test_topics_and_schedules_of_a_test_go_with_it_and_others_stay(node: goq.Node) -> None:
    with node.client() as q:
        q.publish("kept", b"1")
        q.create_schedule("kept", "kept", b"x", cron="0 0 1 1 *")
        with isolated_client(node) as client:
            client.publish("orders", b"1")
            client.create_schedule("nightly", "reports", b"x", every="1s")
        assert topics(q) == ["kept"]
        assert [schedule.name for schedule in q.list_schedules()] == ["kept"]


def test_a_dead_letter_that_comes_while_topics_are_deleted_leaves_none(
    node: goq.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = goq.Client.list_topics

    def list_before_a_dead_letter(client: goq.Client) -> Any:
        monkeypatch.undo()
        found = listed(client)
        (message,) = client.receive("orders", "g", max_messages=1)
        message.reject("never")
        eventually(lambda: "orders.dlq" in topics(client), "the dead letter is there")
        return found

    with isolated_client(node) as client:
        client.publish("orders", b"1")
        monkeypatch.setattr(goq.Client, "list_topics", list_before_a_dead_letter)
    with node.client() as q:
        assert topics(q) == []
