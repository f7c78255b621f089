"""Clients that publish or consume while their topic is made again, or gets other lanes."""

from __future__ import annotations

import itertools
import threading

import pytest

from goq.client import Client
from goq.client._sync.publish.frame_publisher import FramePublisher
from goq.client.errors import PartlyStored
from goq.errors import GoqError, TimedOut
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.model import Message
from tests.support.cluster.running_cluster import RunningCluster
from tests.support.eventually import eventually

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


def test_a_named_lane_keeps_its_meaning_while_all_nodes_learn_of_other_lanes(
    cluster: RunningCluster, topic: str
) -> None:
    orders = [["a", "b", "c"], ["c", "a", "b"], ["b", "c", "a"]] * 3
    expected: dict[bytes, int] = {}
    with (
        Client([node.url for node in cluster.nodes]) as client,
        Client(cluster.by_name["n2"].url) as admin,
    ):
        for number, order in enumerate(orders):
            admin.alter_topic(topic, settings={"priority.lanes": ",".join(order)})
            with client.producer(topic) as producer:
                for key, name in itertools.product(range(12), order):
                    value = b"%d-%d-%s" % (number, key, name.encode())
                    producer.send(value, key=b"k%d" % key, priority=name)
                    expected[value] = order.index(name)
        found = [(one.value, orders[-1].index(one.priority)) for one in client.read_log(topic)]
    assert len(found) == len(expected)
    assert dict(found) == expected


@pytest.mark.parametrize("is_pattern", [False, True])
def test_a_loop_goes_on_with_a_topic_that_is_made_again(
    cluster: RunningCluster, topic: str, is_pattern: bool
) -> None:
    chosen = f"{topic[:-1]}[{topic[-1]}]" if is_pattern else topic
    values: list[bytes | None] = []
    acked: list[bytes | None] = []
    errors: list[GoqError] = []
    with Client([node.url for node in cluster.nodes]) as client:

        def consume() -> None:
            try:
                for message in client.consume(chosen, group="g"):
                    values.append(message.value)
                    message.ack()
                    acked.append(message.value)
                    if len(values) == BEFORE + AFTER:
                        return
            except GoqError as error:
                errors.append(error)

        consuming = threading.Thread(target=consume)
        consuming.start()
        for partition in range(BEFORE):
            client.publish(topic, b"before", partition=partition)
        eventually(lambda: len(acked) == BEFORE, "all messages of the first topic are done")
        (loop,) = client._consumers
        cluster.by_name["n1"].call("DELETE", f"/v1/topics/{topic}")
        eventually(lambda: errors or not loop._workers.streams.now(), "it has noticed")
        assert errors == []
        cluster.create(topic, AFTER)
        for partition in range(AFTER):
            client.publish(topic, b"after", partition=partition)
        consuming.join(30)
    consuming.join()
    assert (values, errors) == ([b"before"] * BEFORE + [b"after"] * AFTER, [])
