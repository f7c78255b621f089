"""Frames that are published under numbers of their own are there once, and it can be asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from goq.client import Client
from goq.client._sync.publish.frame_publisher import FramePublisher
from goq.client.message_batch import producer_id_of
from goq.errors import OutOfOrderSequence, TopicNotFound
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from tests.support.node.running_node import running_node


@pytest.fixture(scope="module")
def publisher() -> Iterator[FramePublisher]:
    settings = {"auto_create_topics": False}
    with running_node(broker=settings) as node, Client(node.url) as found:
        found.create_topic("orders", 2)
        yield FramePublisher(found)


def frame(producer_id: int, sequence: int, *values: bytes) -> bytes:
    return encode_frame(Columns(values), producer=ProducerMark(producer_id, 0, sequence))


def test_what_is_sent_again_is_where_it_was(publisher: FramePublisher) -> None:
    frames = [(0, frame(7, 0, b"a", b"b")), (1, frame(7, 0, b"c"))]
    first = publisher.publish("orders", frames)
    again = publisher.publish("orders", frames)
    assert [(s.partition, s.count, s.duplicate) for s in first] == [(0, 2, False), (1, 1, False)]
    assert [(s.partition, s.offset) for s in again] == [(s.partition, s.offset) for s in first]
    assert all(stored.duplicate for stored in again)
    assert publisher.next_sequences("orders", 7) == {0: 2, 1: 1}
    assert publisher.next_sequences("orders", 8) == {}


def test_numbers_that_do_not_follow_are_refused(publisher: FramePublisher) -> None:
    publisher.publish("orders", [(0, frame(9, 0, b"a"))])
    with pytest.raises(OutOfOrderSequence):
        publisher.publish("orders", [(0, frame(9, 2, b"b"))])
    assert publisher.next_sequences("orders", 9) == {0: 1}


def test_a_topic_that_nobody_makes_is_not_there_for_publishing_either(
    publisher: FramePublisher,
) -> None:
    assert len(publisher.open_topic("orders").partitions) == 2
    with pytest.raises(TopicNotFound):
        publisher.open_topic("nowhere")


def test_who_publishes_is_told_by_what_it_is() -> None:
    one = producer_id_of(("spark", "orders", "load"))
    assert one == producer_id_of(("spark", "orders", "load"))
    assert one != producer_id_of(("spark", "orders", "loads"))
    assert 0 < one < 2**63
