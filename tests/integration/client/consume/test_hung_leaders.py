"""Settlements and extensions at several leaders, one of which hangs or is gone."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from goq.client import Client
from goq.client._sync.consume.received_message import ReceivedMessage
from goq.client._sync.consume.settlement import Settler
from goq.client.leases.lease_keeper import LeaseKeeper
from goq.client.leases.message_buffer import LeaseTime, MessageBuffer
from goq.errors import Unavailable
from tests.support.client.fake_node import FakeNode
from tests.support.client.interrupts import is_done

LEASE_S = 3.0


@contextmanager
def silent_url() -> Iterator[str]:
    """Yield the URL of a node that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def refusing_url() -> Iterator[str]:
    """Yield the URL of a node that is gone."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def lead(node: FakeNode, client: Client, *leaders: str) -> None:
    """Have each URL lead a partition of the topic ``t``, as the node tells and the client knows."""
    node.create("t", len(leaders))
    partitions = [{"partition": number, "leader": leader} for number, leader in enumerate(leaders)]
    node.cluster = {
        "version": 1,
        "nodes": [{"id": leader, "url": leader} for leader in leaders],
        "topics": [{"name": "t", "partitions": partitions}],
    }
    client._http.cluster_map.hear("1")
    client._http.learn("t")


def leased(settler: Settler, partition: int, lease_s: float = LEASE_S) -> ReceivedMessage:
    """Return a message of a loop that begins its lease now."""
    lease = LeaseTime(lease_s, time.monotonic())
    return ReceivedMessage(
        *("t", partition, 0, 0, b"", None, (), "", None, None, None, "g", 1, 7, 0),
        settler,
        lease,
    )


def test_a_leader_that_hangs_keeps_no_other_lease_from_being_extended(node: FakeNode) -> None:
    with silent_url() as silent, Client(node.url) as client:
        lead(node, client, silent, node.url)
        buffer = MessageBuffer[ReceivedMessage](keeps_taken=True)
        keeper = LeaseKeeper(client._http.options, client._http.cluster_map, buffer, list)
        messages = [leased(client._settler, number) for number in range(2)]
        for message in messages:
            buffer.add([message], message.lease_time)
            buffer.take()
        began_s = time.monotonic()
        keeper.start()
        try:
            node.eventually(lambda: node.paths("POST", "/extend"))
            asked_s = time.monotonic()
        finally:
            keeper.stop()
    assert asked_s < began_s + 10 * LEASE_S  # not after a whole timeout
    assert node.group("t", "g").calls[0][1]["receipts"] == ["1:7:0"]


def test_what_one_leader_cannot_settle_is_told_and_the_rest_is_settled(node: FakeNode) -> None:
    with refusing_url() as gone, Client(node.url, retries=0) as client:
        lead(node, client, gone, node.url)
        node.group("t", "g").leased[1, 0] = (7, 1)
        messages = [leased(client._settler, number) for number in range(2)]
        settled = client.ack_many(messages)
        assert settled == (1, [("0:7:0", Unavailable.code)])
        assert [message.settled for message in messages] == [False, True]
        with pytest.raises(Unavailable):
            client.ack_many(messages[:1])


def test_a_worker_gives_up_a_settlement_when_its_lease_is_over() -> None:
    with refusing_url() as gone, Client(gone, retries="forever") as client:
        message = leased(client._settler, 0, lease_s=0.3)
        message.is_given_up_with_lease = True

        def ack() -> None:
            with pytest.raises(Unavailable):
                message.ack()

        assert is_done(ack)
