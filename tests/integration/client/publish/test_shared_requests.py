"""A message that the node refuses is its own caller's error, not that of the same request."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from goq.client import Client
from goq.errors import GoqError, InvalidInput
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node


@pytest.fixture
def node() -> Iterator[RunningNode]:
    with running_node() as running:
        running.call("POST", "/v1/topics", {"name": "orders", "partitions": 1})
        yield running


def test_a_message_that_is_refused_fails_no_other_of_its_request(node: RunningNode) -> None:
    outcomes: dict[bytes, object] = {}
    with Client(node.url) as client:
        client.publish("orders", b"first", delay="1m")  # learns delay.max
        node.call("PATCH", "/v1/topics/orders", {"settings": {"delay.max": "1s"}})

        def publish(value: bytes, delay: str | None) -> None:
            try:
                outcomes[value] = client.publish("orders", value, delay=delay)
            except GoqError as error:
                outcomes[value] = error

        publisher = client._direct_publisher("orders", None)
        values = [b"%d" % number for number in range(6)]
        with publisher._lock:  # so that they come together
            for value in values:
                delay = "1h" if value == b"4" else None
                threading.Thread(target=publish, args=(value, delay), daemon=True).start()
            eventually(lambda: len(publisher._queue) == len(values))
        eventually(lambda: len(outcomes) == len(values))
        refused = outcomes.pop(b"4")
        assert isinstance(refused, InvalidInput)
        assert (refused.code, refused.retryable) == ("invalid_input", False)
        assert "delay.max" in refused.detail
        assert {value for value, found in outcomes.items() if isinstance(found, GoqError)} == set()
        read = [message.value for message in client.read_log("orders")]
        assert sorted(value or b"" for value in read) == [b"0", b"1", b"2", b"3", b"5", b"first"]
        with pytest.raises(InvalidInput, match=r"delay\.max") as raised:  # known to the client now
            client.publish("orders", b"late", delay="1h")
        assert raised.value.field == "delay"
