"""Receives and streams that wait while something changes under them: none goes deaf."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.api.calls import publish, receive, values
from tests.support.api.streams import streaming
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode

Change = Callable[[RunningNode, str], None]
_PARTITIONS = 3


def _another_stream_closes(node: RunningNode, topic: str) -> None:
    with streaming(node, topic, consumer="c"):
        pass
    eventually(lambda: _waiting(node, topic) == 1)


def _the_member_is_deleted(node: RunningNode, topic: str) -> None:
    node.request("DELETE", f"/v1/topics/{topic}/groups/g/members/c")


def _the_group_is_ordered_by(ordering: str) -> Change:
    def change(node: RunningNode, topic: str) -> None:
        settings = {"settings": {"ordering": ordering}}
        node.call("PUT", f"/v1/topics/{topic}/groups/g", settings)

    return change


def _the_topic_is_ordered_by(ordering: str) -> Change:
    def change(node: RunningNode, topic: str) -> None:
        settings = {"settings": {"delivery": {"ordering": ordering}}}
        node.call("PATCH", f"/v1/topics/{topic}", settings)

    return change


def _the_group_is_deleted(node: RunningNode, topic: str) -> None:
    node.call("DELETE", f"/v1/topics/{topic}/groups/g")


def _the_group_is_reset(node: RunningNode, topic: str) -> None:
    node.call("POST", f"/v1/topics/{topic}/groups/g/reset", {"to": "latest"})


def _a_partition_is_added(node: RunningNode, topic: str) -> None:
    node.call("PATCH", f"/v1/topics/{topic}", {"partitions": _PARTITIONS + 1})


def _lanes_are_changed(node: RunningNode, topic: str) -> None:
    node.call("PATCH", f"/v1/topics/{topic}", {"settings": {"priority": {"lanes": "a,b"}}})


CHANGES: dict[str, Change] = {
    "nothing": lambda _node, _topic: None,
    "another stream closes": _another_stream_closes,
    "its member is deleted": _the_member_is_deleted,
    "the group is ordered by key": _the_group_is_ordered_by("key"),
    "the group is ordered by partition": _the_group_is_ordered_by("partition"),
    "the group is not ordered": _the_group_is_ordered_by("none"),
    "the topic is ordered by key": _the_topic_is_ordered_by("key"),
    "the topic is ordered by partition": _the_topic_is_ordered_by("partition"),
    "the group is deleted": _the_group_is_deleted,
    "the group is reset": _the_group_is_reset,
    "a partition is added": _a_partition_is_added,
    "lanes are changed": _lanes_are_changed,
}


@pytest.fixture(params=["key", "none", "partition"])
def ordered(node: RunningNode, topic: str, request: pytest.FixtureRequest) -> str:
    settings = {"settings": {"delivery": {"ordering": request.param}}}
    node.call("PATCH", f"/v1/topics/{topic}", settings)
    return topic


@pytest.mark.parametrize("change", CHANGES)
def test_a_stream_that_waits_gets_all_messages_after_a_change(
    node: RunningNode, ordered: str, change: str
) -> None:
    with streaming(node, ordered, max_in_flight=100, consumer="c") as stream:
        eventually(lambda: _waiting(node, ordered) == 1)
        CHANGES[change](node, ordered)
        missing = _publish_to_all(node, ordered)
        while missing:
            missing.discard(stream.message()["value"])


@pytest.mark.parametrize("change", CHANGES)
def test_a_long_poll_gets_all_messages_after_a_change(
    node: RunningNode, ordered: str, change: str
) -> None:
    with _polling(node, ordered) as found:
        eventually(lambda: _waiting(node, ordered) == 1)
        CHANGES[change](node, ordered)
        missing = _publish_to_all(node, ordered)
        eventually(lambda: missing <= set(found))


@pytest.mark.parametrize("change", ["the group is ordered by partition", "the group is deleted"])
def test_all_that_wait_begin_again_not_one_of_them(
    node: RunningNode, topic: str, change: str
) -> None:
    with streaming(node, topic, consumer="a"), streaming(node, topic, consumer="b"):
        eventually(lambda: _waiting(node, topic) == 2)
        CHANGES[change](node, topic)
        _the_group_is_ordered_by("partition")(node, topic)
        eventually(lambda: _owners(node, topic) == {"a", "b"})


def test_a_deleted_group_that_streams_go_on_with_is_listed_again(
    node: RunningNode, topic: str
) -> None:
    with streaming(node, topic, consumer="a", max_in_flight=2):
        eventually(lambda: _waiting(node, topic) == 1)
        _the_group_is_deleted(node, topic)
        path = f"/v1/topics/{topic}/groups/g"
        eventually(lambda: node.request("GET", path).status == 200)


def _publish_to_all(node: RunningNode, topic: str) -> set[str]:
    """Publish to each partition; return the values."""
    shown = node.call("GET", f"/v1/topics/{topic}")
    numbers = [each["partition"] for each in shown["partitions"]]
    for number in numbers:
        publish(node, topic, f"m{number}", partition=number)
    return {f"m{number}" for number in numbers}


@contextmanager
def _polling(node: RunningNode, topic: str) -> Iterator[list[str]]:
    """Long-poll in a thread; yield the list that the values come to."""
    found: list[str] = []
    ends = threading.Event()

    def poll() -> None:
        while not ends.is_set():
            found.extend(values(receive(node, topic, consumer="c", wait="60s")))

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    try:
        yield found
    finally:
        ends.set()
        publish(node, topic, "last", partition=0)
        poller.join(30)
        assert not poller.is_alive()


def _waiting(node: RunningNode, topic: str) -> int:
    """How many receives wait, in any queue."""
    broker = node.node.broker
    assert broker is not None
    queues = broker.topics[topic].receiver.waiters.queues
    return node.on_loop(lambda: sum(map(len, queues.values())))


def _owners(node: RunningNode, topic: str) -> set[str]:
    shown: dict[str, Any] = node.call("GET", f"/v1/topics/{topic}/groups/g/members")
    return {member["consumer"] for member in shown["members"] if member["partitions"]}
