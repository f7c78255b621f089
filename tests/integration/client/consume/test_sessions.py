"""Consume loops of one name in a group that is ordered by partition."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from goq import Client
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    """A whole node, for all tests here."""
    with running_node() as running:
        yield running


@pytest.fixture
def topic(node: RunningNode, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with three partitions."""
    name = str(request.node.name).removeprefix("test_")
    node.call("POST", "/v1/topics", {"name": name, "partitions": 3})
    return name


def test_loops_of_one_name_never_work_on_one_partition_at_once(
    node: RunningNode, topic: str
) -> None:
    _by_partition(node, topic)
    working: Counter[int] = Counter()
    handled: list[int] = []
    overlaps: list[int] = []
    lock, ends = threading.Lock(), threading.Event()

    def consume(*, polls: bool) -> None:
        with Client(node.url, client_id="one-name") as client:
            while not ends.is_set():
                for message in client.consume(
                    topic, group="g", timeout="200ms", until_empty=polls, prefetch=4
                ):
                    with lock:
                        working[message.partition] += 1
                        if working[message.partition] > 1:
                            overlaps.append(message.partition)
                    time.sleep(0.001)
                    with lock:
                        working[message.partition] -= 1
                        handled.append(message.partition)
                    message.ack()

    loops = [threading.Thread(target=consume, kwargs={"polls": n == 0}) for n in range(3)]
    for loop in loops:
        loop.start()
    with Client(node.url) as client:
        for number in range(300):
            client.publish(topic, b"%d" % number, partition=number % 3)
    eventually(lambda: len(handled) >= 300)
    ends.set()
    for loop in loops:
        loop.join(30)
    assert not overlaps
    assert Counter(handled) == {0: 100, 1: 100, 2: 100}


def test_a_loop_that_asks_leaves_its_group_when_it_ends(node: RunningNode, topic: str) -> None:
    _by_partition(node, topic)
    with Client(node.url, client_id="one-name") as client:
        for number in range(3):
            client.publish(topic, b"%d" % number, partition=number)
        first = [m.ack() for m in client.consume(topic, group="g", until_empty=True)]
        assert len(first) == 3
        assert node.call("GET", f"/v1/topics/{topic}/groups/g/members")["members"] == []


def test_receives_of_two_clients_of_one_name_are_two_members(node: RunningNode, topic: str) -> None:
    _by_partition(node, topic)
    with Client(node.url, client_id="n") as one, Client(node.url, client_id="n") as other:
        one.receive(topic, "g")
        other.receive(topic, "g")
        shown = node.call("GET", f"/v1/topics/{topic}/groups/g/members")["members"]
        assert [member["consumer"] for member in shown] == ["n", "n"]
        one.receive(topic, "g", consumer="mine")
        other.receive(topic, "g", consumer="mine")
        shown = node.call("GET", f"/v1/topics/{topic}/groups/g/members")["members"]
        assert [member["consumer"] for member in shown] == ["mine", "n", "n"]


def test_a_message_that_is_never_settled_comes_again_to_the_loop_that_waits(
    node: RunningNode, topic: str
) -> None:
    with Client(node.url) as client:
        client.publish(topic, b"a")
        found = client.consume(topic, group="g", visibility="100ms", wait="300ms", max_messages=3)
        attempts = [message.attempt for message in found]
    assert len(attempts) == 3
    assert attempts == sorted(set(attempts))  # one whose lease ran out in the loop is left out


def _by_partition(node: RunningNode, topic: str) -> None:
    settings = {"settings": {"delivery": {"ordering": "partition"}}}
    node.call("PATCH", f"/v1/topics/{topic}", settings)
