from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from goq.client._sync.http import Http
from goq.client._sync.log import topic_discovery
from goq.client._sync.log.topic_discovery import TopicDiscovery
from goq.client.protocol.topic_selection import TopicSelection


class SlowNode:
    """Answers with the topics ``a`` and ``b``, each time after ``takes_s``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.takes_s = self.now_s = 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        monkeypatch.setattr(topic_discovery, "time", clock)

    def call(self, _method: str, _target: str) -> Any:
        self.now_s += self.takes_s
        return {"topics": [{"name": name} for name in ("a", "b", "other")]}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> SlowNode:
    return SlowNode(monkeypatch)


def discovery_of(node: SlowNode) -> TopicDiscovery:
    return TopicDiscovery(cast(Http, node), TopicSelection("[ab]"))


def test_each_topic_is_told_once_and_again_after_it_was_forgotten(node: SlowNode) -> None:
    discovery = discovery_of(node)
    assert discovery.new_topics() == ["a", "b"]
    assert discovery.new_topics() == []
    discovery.forget("b")
    assert discovery.new_topics() == ["b"]


@pytest.mark.parametrize(("takes_s", "pause_s"), [(0.0, 1), (0.02, 1), (0.1, 5), (0.2, 10)])
def test_a_node_that_answers_slowly_is_asked_less_often(
    node: SlowNode, takes_s: float, pause_s: float
) -> None:
    discovery, node.takes_s = discovery_of(node), takes_s
    discovery.new_topics()
    assert discovery.pause_s == pytest.approx(pause_s)


def test_an_answer_that_came_after_an_outage_is_no_reason_to_ask_for_an_hour(
    node: SlowNode,
) -> None:
    discovery, node.takes_s = discovery_of(node), 60
    discovery.new_topics()
    assert discovery.pause_s == 10
