"""Requests and closed partitions leave no cycles of references.

A collection of garbage would find them, and holds up all requests.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.api.calls import publish, receive, settle
from tests.support.effort import first_of
from tests.support.node.running_node import RunningNode, running_node

REPETITIONS = 50
GROUP = "/v1/topics/t/groups/g"


@pytest.fixture
def node() -> Iterator[RunningNode]:
    with running_node() as running:
        running.call("POST", "/v1/topics", {"name": "t", "partitions": 6})
        yield running


def deliver_and(verb: str, **fields: Any) -> Callable[[RunningNode], object]:
    def work(node: RunningNode) -> None:
        publish(node, "t", "x")
        (message,) = receive(node, "t", max_messages=1)
        settle(node, "t", verb, message["receipt"], **fields)

    return work


WORKS: dict[str, Callable[[RunningNode], object]] = {
    "publish": lambda node: publish(node, "t", "x"),
    "publish many": lambda node: publish(node, "t", *["x"] * 100, key="k"),
    "receive and ack": deliver_and("ack"),
    "receive and nack": deliver_and("nack", delay="1h"),
    "receive and extend": deliver_and("extend", visibility="1h"),
    "receive nothing": lambda node: receive(node, "t", "nobody"),
    "a long poll": lambda node: receive(node, "t", "nobody", wait="1ms"),
    "read": lambda node: node.call("GET", "/v1/topics/t/messages?partition=0"),
    "show a topic": lambda node: node.call("GET", "/v1/topics/t"),
    "a refusal": lambda node: node.request("GET", "/v1/topics/nothing"),
    "an unknown field": lambda node: node.request("POST", "/v1/topics", {"nonsense": 1}),
}


@pytest.mark.parametrize("name", first_of(list(WORKS), quick=5))
def test_no_request_leaves_a_cycle_of_references(node: RunningNode, name: str) -> None:
    work = WORKS[name]
    work(node)  # what is made once
    gc.collect()
    gc.freeze()  # the tests before this one: no collection looks at their objects again
    gc.disable()
    try:
        left = []
        for _ in range(3):  # the node's own work leaves some now and then, requests each time
            for _ in range(REPETITIONS):
                work(node)
            left.append(gc.collect())
        assert min(left) < REPETITIONS
    finally:
        gc.enable()


PARTITIONS = 40
TOPIC_OBJECTS_MAX = 100


def objects_left_by_a_deleted_topic(node: RunningNode, partitions: int) -> int:
    node.call("POST", "/v1/topics", {"name": "short", "partitions": partitions})
    for number in range(partitions):
        publish(node, "short", "x", partition=number)
        (message,) = receive(node, "short", max_messages=1)
        settle(node, "short", "nack", message["receipt"], delay="1h")
        receive(node, "short", "other", max_messages=1)
    node.call("DELETE", "/v1/topics/short")
    return gc.collect()


def test_a_closed_partition_leaves_no_cycle_of_references(node: RunningNode) -> None:
    objects_left_by_a_deleted_topic(node, 1)  # what is made once
    gc.freeze()
    gc.disable()
    try:
        left = min(objects_left_by_a_deleted_topic(node, PARTITIONS) for _ in range(3))
        assert left < TOPIC_OBJECTS_MAX
    finally:
        gc.enable()
        gc.unfreeze()
