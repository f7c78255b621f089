"""What ``goq top`` asks the node, as what is shown changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from goq.client.results.live import LiveState, LiveTotals
from goq_cli.output.top import feed
from goq_cli.output.top.feed import TopFeed, TopQuestion
from tests.unit.cli.top.states import state, topic


class Cluster:
    """A cluster with many topics, or with few, that notes what it is asked."""

    def __init__(self, topics: int) -> None:
        self.topics = topics
        self.asked: list[dict[str, Any]] = []

    def get_live_state(self, *topics: str, **asked: Any) -> LiveState:
        self.asked.append({"topics": topics, **asked})
        if topics:
            return state(len(self.asked), *map(topic, topics))
        is_partial = self.topics > 1 and not asked.get("search")
        at_s = len(self.asked)
        found = LiveTotals(topics=self.topics)
        return state(at_s, topic("a"), is_partial=is_partial, totals=found)

    def servers_and_token(self) -> tuple[list[str], None]:
        return ["http://node"], None

    @contextmanager
    def patient_client(self, _on_retry: object) -> Iterator[Cluster]:
        yield self


def asked(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return what is asked at first, and once a filter and an order were chosen."""
    monkeypatch.setattr(feed, "SESSION", cluster)
    answered = threading.Semaphore(0)
    running = TopFeed(60.0, TopQuestion(None, "publish", ""), answered.release)
    running.start()
    assert answered.acquire(timeout=30)
    running.ask(TopQuestion(None, "lag", "eu"))
    assert answered.acquire(timeout=30)
    running.end()
    running.join(30)
    return cluster.asked


def test_of_many_topics_the_node_finds_those_that_the_screen_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = asked(Cluster(9000), monkeypatch)
    assert (first["order"], first["search"], first["interval_ms"]) == ("publish", None, 60_000)
    assert first["top"] <= 500
    assert (second["order"], second["search"], second["top"]) == ("lag", "eu", first["top"])


def test_of_few_topics_the_screen_finds_topics_and_groups_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, second = asked(Cluster(1), monkeypatch)
    assert (second["order"], second["search"]) == ("lag", None)


def test_an_open_topic_is_told_also_where_it_is_not_among_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(9000)
    monkeypatch.setattr(feed, "SESSION", cluster)
    answered = threading.Semaphore(0)
    running = TopFeed(60.0, TopQuestion("z", "publish", ""), answered.release)
    running.start()
    assert answered.acquire(timeout=30)
    running.end()
    running.join(30)
    assert running.answer is not None
    assert [each.name for each in running.answer.moment.topics] == ["a", "z"]
