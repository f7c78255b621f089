"""Messages of one key run one after the other, and a busy key stops no other."""

from __future__ import annotations

import threading

import pytest

import goq
from goq.client import ReceivedMessage
from tests.support.client.worker_app import is_done, running, state_of, steps_of
from tests.support.eventually import eventually


@pytest.mark.parametrize("concurrency", [2, 8])
def test_a_stuck_key_does_not_stop_others(
    goq_node: goq.Node, goq_client: goq.Client, concurrency: int
) -> None:
    app = goq.WorkerApp(goq_node.url)
    others, of_key = list[bytes](), list[bytes]()
    held = threading.Event()

    @app.worker("stuck", group="g", concurrency=concurrency)
    def work(message: ReceivedMessage) -> None:
        assert message.value is not None
        if message.key == b"stuck":
            assert held.wait(60)
            of_key.append(message.value)
        else:
            others.append(message.value)

    goq_client.create_topic("stuck", 1)
    values = [b"%d" % number for number in range(40)]
    goq_client.publish_many("stuck", [goq.Message(value, b"stuck") for value in values])
    goq_client.publish_many("stuck", [goq.Message(value, b"of " + value) for value in values])
    with running(app):
        eventually(lambda: len(others) == len(values), "all others ran")
        assert of_key == []
        held.set()
        eventually(is_done(goq_client, "stuck"), "all is settled")
    assert of_key == values


def test_a_stop_returns_the_messages_that_wait_for_their_key(
    goq_node: goq.Node, goq_client: goq.Client
) -> None:
    app = goq.WorkerApp(goq_node.url)
    began, held = threading.Event(), threading.Event()

    @app.worker("waiting", group="g", concurrency=4)
    def work(message: ReceivedMessage) -> None:
        began.set()
        assert held.wait(60)

    goq_client.create_topic("waiting", 1)
    messages = [goq.Message(b"%d" % number, b"k") for number in range(4)]
    first, *rest = [each.id for each in goq_client.publish_many("waiting", messages)]
    with running(app):
        eventually(lambda: state_of(goq_client, "waiting")[1] == 4, "all are leased")
        assert began.wait(60)
        app.stop()
        for message in rest:
            eventually(lambda at=message: "RETURNED" in steps_of(goq_client, at), "it is returned")
        held.set()
    assert steps_of(goq_client, first) == ["PUBLISHED", "DELIVERED", "ACKNOWLEDGED"]
    found = goq_client.receive("waiting", "g", wait="10s")
    assert [(message.value, message.attempt) for message in found] == [
        (b"1", 1),
        (b"2", 1),
        (b"3", 1),
    ]
