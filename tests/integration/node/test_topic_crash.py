"""A node that is killed while a topic is created, changed or deleted has done it or has not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from goq.storage.catalog.checked_tables import CheckedTables
from goq.storage.disk import RealDisk
from tests.support.api.calls import publish, values
from tests.support.node.running_node import RunningNode, running_node
from tests.support.storage.folder_copy import copy_in_use

STEPS: list[tuple[type, str]] = [
    (CheckedTables, "put"),
    (CheckedTables, "delete"),
    (RealDisk, "replace"),
    (RealDisk, "make_dir"),
    (RealDisk, "open"),
    (RealDisk, "_remove_dir"),
]
MESSAGES = ["first", "second"]


@contextmanager
def states_between_steps(data: Path, to: Path) -> Iterator[list[Path]]:
    """Copy the folder before each step of its node, and at last: what a kill there would leave."""
    copies: list[Path] = []

    def copy() -> None:
        copies.append(to / str(len(copies)))
        copy_in_use(data, copies[-1])

    def hook(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            copy()
            return step(*arguments, **options)

        return run

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STEPS:
            patch.setattr(owner, name, hook(getattr(owner, name)))
        yield copies
        copy()


def fill(node: RunningNode) -> None:
    settings = {"retention.age": "100d"}
    node.call("POST", "/v1/topics", {"name": "t", "partitions": 2, "settings": settings})
    node.call("PUT", "/v1/topics/t/groups/g", {"settings": {"ordering": "none"}})
    for number in range(2):
        publish(node, "t", *MESSAGES, partition=number)


def found(node: RunningNode) -> dict[str, Any]:
    """Return all topics with their age of retention and their messages; nothing is in doubt."""
    assert node.call("GET", "/healthz") == {"status": "ok"}
    topics: dict[str, Any] = {}
    for topic in node.call("GET", "/v1/topics")["topics"]:
        name = topic["name"]
        stored = [
            values(
                node.call("GET", f"/v1/topics/{name}/messages?partition={n}&offset=0")["messages"]
            )
            for n in range(len(topic["partitions"]))
        ]
        groups = node.call("GET", f"/v1/topics/{name}/groups")["groups"]
        topics[name] = topic["settings"]["retention.age"], stored, [g["group"] for g in groups]
    return topics


def create(node: RunningNode) -> None:
    node.call("POST", "/v1/topics", {"name": "new", "partitions": 2})


def alter(node: RunningNode) -> None:
    node.call("PATCH", "/v1/topics/t", {"settings": {"retention.age": "5d"}, "partitions": 3})


def delete(node: RunningNode) -> None:
    node.call("DELETE", "/v1/topics/t")


def recreate(node: RunningNode) -> None:
    delete(node)
    node.call("POST", "/v1/topics", {"name": "t", "partitions": 1})


OLD = {"t": ("100d", [MESSAGES, MESSAGES], ["g"])}


@pytest.mark.parametrize(
    ("change", "outcomes"),
    [
        (create, [OLD, {**OLD, "new": ("7d", [[], []], [])}]),
        (alter, [OLD, {"t": ("5d", [MESSAGES, MESSAGES, []], ["g"])}]),
        (delete, [OLD, {}]),
        (recreate, [OLD, {}, {"t": ("7d", [[]], [])}]),
    ],
)
def test_a_change_of_a_topic_is_done_or_not_wherever_the_node_is_killed(
    tmp_path: Path, change: Callable[[RunningNode], None], outcomes: list[dict[str, Any]]
) -> None:
    data = tmp_path / "data"
    with running_node(data) as node:
        fill(node)
        assert found(node) == outcomes[0]
        with states_between_steps(data, tmp_path) as copies:
            change(node)
        assert found(node) == outcomes[-1]
    assert len(copies) > 5
    last = 0
    for copy in copies:
        with running_node(copy) as node:
            now = found(node)
        assert now in outcomes, copy
        last = max(last, outcomes.index(now))
        assert outcomes.index(now) == last, copy
    assert last == len(outcomes) - 1
