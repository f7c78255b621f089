"""Clients whose topic is deleted and created again, with fewer partitions, while they publish."""

from __future__ import annotations

import pytest

from goq.client import Client
from goq.client._sync.frame_publisher import FramePublisher
from goq.client.errors import PartlyStored
from goq.errors import TimedOut
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.model import Message
from tests.support.cluster.running_cluster import RunningCluster

BEFORE, AFTER = 6, 5


def recreate(cluster: RunningCluster, topic: str) -> None:
    node = cluster.by_name["n1"]
    node.call("DELETE", f"/v1/topics/{topic}")
    cluster.create(topic, AFTER)


def stored(client: Client, topic: str) -> list[bytes]:
    return sorted(message.value for message in client.read_log(topic))


def test_what_has_no_partition_any_more_goes_to_another_one_once(
    cluster: RunningCluster, topic: str
) -> None:
    messages = [Message(b"%03d" % number, b"k%d" % number) for number in range(60)]
    with Client(cluster.by_name["n1"].url) as client:
        client.publish_many(topic, messages)  # it knows all leaders from now on
        recreate(cluster, topic)
        published = client.publish_many(topic, messages)
        assert len(published) == len(messages)
        found = stored(client, topic)
        assert found == [message.value for message in messages]
        with client.producer(topic) as producer:
            producer.send_many(messages)
        assert stored(client, topic) == sorted(2 * [message.value for message in messages])


def test_frames_for_partitions_that_are_gone_are_told_with_words(
    cluster: RunningCluster, topic: str
) -> None:
    frames = [
        (number, encode_frame(Columns([b"v"]), producer=ProducerMark(77, 0, 0)))
        for number in range(BEFORE)
    ]
    with Client(cluster.by_name["n1"].url) as client:
        publisher = FramePublisher(client)
        publisher.publish(topic, frames)
        recreate(cluster, topic)
        with pytest.raises(TimedOut, match="created again with fewer partitions") as raised:
            publisher.publish(topic, frames)
        assert isinstance(raised.value, PartlyStored)
        assert set(raised.value.stored) <= set(range(AFTER))
        assert stored(client, topic) == [b"v"] * len(raised.value.stored)
