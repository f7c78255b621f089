from __future__ import annotations

from goq.config.node import Config
from goq.config.sources import load_config
from goq.process.settings import changed_settings


def test_nothing_differs_without_a_setting() -> None:
    assert changed_settings(Config(), load_config(None, {})) == {}


def test_settings_that_differ_are_named_with_their_later_value() -> None:
    before = load_config(None, {"broker.node_id": "a"})
    after = load_config(
        None,
        {
            "broker.listen": "0.0.0.0:8080",
            "defaults.topic.retention.age": "3d",
            "defaults.topic.partitions": "2",
            "security.hosts": "a.example,b.example",
        },
    )
    assert changed_settings(before, after) == {
        "broker.listen": "0.0.0.0:8080",
        "broker.node_id": "node-1",
        "defaults.topic.partitions": "2",
        "defaults.topic.retention.age": "3d",
        "security.hosts": "a.example,b.example",
    }
