"""A cluster's leaders are killed under clients: nothing acknowledged is lost or comes twice."""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from goq.client import Client, ReceivedMessage
from goq.errors import GoqError, Unavailable
from goq.model import Message, Receipt
from goq.pipeline.arrow.node_source import NodeSource
from tests.support.cluster.process_cluster import NAMES, ProcessCluster, process_cluster
from tests.support.effort import first_of
from tests.support.eventually import eventually

PARTITIONS = 6
RETRIES = "60s"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: ProcessCluster) -> ProcessCluster:
    nodes.start_the_dead()
    return nodes


@pytest.fixture
def topic(cluster: ProcessCluster, request: pytest.FixtureRequest) -> str:
    name = f"orders-{zlib.crc32(request.node.name.encode())}"
    cluster.create(name, PARTITIONS)
    return name


class Load(threading.Thread):
    """Work that goes on until it is told to end; what ended it before is raised by ``finish``."""

    def __init__(self, cluster: ProcessCluster, topic: str) -> None:
        super().__init__(daemon=True)
        self.urls = cluster.urls
        self.topic = topic
        self.ending = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with Client(self.urls, retries=RETRIES, timeout="10s") as client:
                self.work(client)
        except BaseException as error:
            self.error = error

    def work(self, client: Client) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.ending.set()
        self.join(120)
        assert not self.is_alive(), f"{type(self).__name__} did not end"
        if self.error is not None:
            raise self.error


class Publishing(Load):
    """Publishes keyed batches, each message once as far as it knows."""

    def __init__(self, cluster: ProcessCluster, topic: str, name: str) -> None:
        super().__init__(cluster, topic)
        self.acknowledged: list[bytes] = []
        self._prefix = name

    def work(self, client: Client) -> None:
        number = 0
        while not self.ending.wait(0.01):
            values = [b"%s-%d" % (self._prefix.encode(), n) for n in range(number, number + 20)]
            number += 20
            published = client.publish_many(self.topic, [Message(v, key=v) for v in values])
            assert len(published) == len(values)
            self.acknowledged += values


class Consuming(Load):
    """Acknowledges what a group is given, and keeps a ledger of what was.

    ``lost`` are those whose acks were refused: the answer to an earlier attempt may have been what
    was lost, or the message comes again.
    """

    def __init__(self, cluster: ProcessCluster, topic: str, is_done: Callable[[], bool]) -> None:
        super().__init__(cluster, topic)
        self.done: list[bytes] = []
        self.lost: list[bytes] = []
        self._is_done = is_done
        self._held: list[ReceivedMessage] = []

    def work(self, client: Client) -> None:
        def settle() -> None:
            held, self._held = self._held, []
            lost = [Receipt.parse(each.receipt) for each in client.ack_many(held).failed]
            for message in held:
                assert message.value is not None
                is_lost = any(_is_of(message, run) for run in lost)
                (self.lost if is_lost else self.done).append(message.value)

        while not self._is_done():
            for message in client.consume(
                self.topic, group="shop", prefetch=50, timeout="1s", before_wait=settle
            ):
                self._held.append(message)
                if len(self._held) == 20:
                    settle()
            settle()


def _is_of(message: ReceivedMessage, run: Receipt) -> bool:
    claim = message.claim()
    return run[:2] == claim[:2] and run.start <= claim.start < run.end


@pytest.mark.long
@pytest.mark.parametrize("killed", first_of([(["n1"],), (["n1", "n2"],)], quick=1))
def test_every_acknowledged_message_is_in_the_log_once_and_consumed_while_leaders_are_killed(
    cluster: ProcessCluster, topic: str, killed: list[str]
) -> None:
    producers = [Publishing(cluster, topic, "a"), Publishing(cluster, topic, "b")]
    over = threading.Event()
    wanted: set[bytes] = set()
    consumers: list[Consuming] = []

    def is_done() -> bool:
        seen = {v for each in consumers for v in (*each.done, *each.lost)}
        return over.is_set() and wanted <= seen

    consumers = [Consuming(cluster, topic, is_done) for _ in range(2)]
    for load in [*producers, *consumers]:
        load.start()
    for name in killed:
        before = [len(each.acknowledged) for each in producers]
        _wait_for_more(producers, before)
        cluster.kill(name, topic)
        _wait_for_more(producers, [len(each.acknowledged) for each in producers])
        cluster.nodes[name].start()
        eventually(lambda: _all_in_sync(cluster, topic), "all replicas are in sync", seconds=60)
    for producer in producers:
        producer.finish()
    wanted.update(v for each in producers for v in each.acknowledged)
    over.set()
    eventually(lambda: is_done() or any(c.error for c in consumers), "all is consumed", seconds=120)
    for consumer in consumers:
        consumer.finish()

    with Client(cluster.urls, retries=RETRIES) as client:
        logged = Counter(m.value for m in client.read_log(topic))
    assert not wanted - logged.keys()
    assert [value for value, count in logged.items() if count > 1] == []
    acknowledged = Counter(v for each in consumers for v in each.done)
    assert [value for value, count in acknowledged.items() if count > 1] == []


def test_the_ack_of_a_message_from_a_leader_that_died_is_taken_by_the_next_one(
    cluster: ProcessCluster, topic: str
) -> None:
    with Client(cluster.urls, retries=RETRIES, timeout="10s") as client:
        client.publish_many(topic, [Message(b"%d" % n, key=b"%d" % n) for n in range(60)])
        held = list(client.consume(topic, group="shop", max_messages=60, visibility="10m"))
        assert len(held) == 60
        assert {message.partition for message in held} == set(range(PARTITIONS))

        cluster.kill("n1", topic)

        settled = client.ack_many(held)
        assert (settled.done, settled.failed) == (60, [])
        assert list(client.consume(topic, group="shop", until_empty=True)) == []


def test_a_client_that_was_given_one_server_goes_on_when_that_one_dies(
    cluster: ProcessCluster, topic: str
) -> None:
    first = cluster.nodes["n1"]
    with Client(first.url, retries=RETRIES, timeout="10s") as client:
        client.publish(topic, b"before")
        cluster.kill("n1", topic)

        client.publish_many(topic, [Message(b"%d" % n, key=b"%d" % n) for n in range(60)])
        assert len(list(client.read_log(topic))) >= 60
        held = list(client.consume(topic, group="shop", until_empty=True))
        assert len(held) == 61

        source = NodeSource(client)
        read = 0
        for partition, bounds in source.bounds(topic).items():
            for frame_batch in source.read_messages(topic, partition, *bounds):
                assert frame_batch.missing == []
                read += sum(frame.header.message_count for frame in frame_batch.frames)
        assert read == 61
        events = source.event_bounds(topic)
        assert sorted(events) == list(range(PARTITIONS))
        for partition, bounds in events.items():
            assert bounds.end > 0
            reached = [s.next_offset for s in source.read_events(topic, partition, *bounds)]
            assert reached[-1] == bounds.end


def test_a_loop_that_ends_after_so_many_messages_leaves_those_of_other_nodes_untouched(
    cluster: ProcessCluster, topic: str
) -> None:
    with Client(cluster.urls, retries=RETRIES, timeout="10s") as client:
        client.publish_many(topic, [Message(b"%d" % n, key=b"%d" % n) for n in range(60)])
        first = list(client.consume(topic, group="shop", max_messages=45, prefetch=45))
        assert client.ack_many(first).done == 45
        rest = list(client.consume(topic, group="shop", until_empty=True))
        assert len(rest) == 15
        assert {message.attempt for message in rest} == {1}


def test_receipts_say_for_how_many_nodes_a_publisher_has_waited(
    cluster: ProcessCluster, topic: str
) -> None:
    node, path = cluster.nodes["n1"], f"/v1/topics/{topic}/messages"
    for number in range(PARTITIONS):  # of this node and of others
        message = {"value": "v", "partition": number}
        for body, acks, nodes in (
            ({"messages": [message]}, "quorum", 2),
            ({"messages": [message], "acks": "quorum"}, "quorum", 2),
            ({"messages": [message], "acks": "leader"}, "leader", 1),
        ):
            stored = node.call("POST", path, body)
            assert (stored["durability"], stored["acks"], stored["nodes"]) == (
                "always",
                acks,
                nodes,
            )
    refused = node.request("POST", path, {"messages": [{"value": "v"}], "acks": "all"})
    assert (refused.status, refused.json["field"]) == (400, "acks")


def test_nothing_is_acknowledged_for_enough_nodes_where_the_leader_is_left_alone(
    cluster: ProcessCluster, topic: str
) -> None:
    led = next(n for n, leader in cluster.leaders(topic).items() if leader == "n3")
    with Client(cluster.nodes["n3"].url, retries="0s", timeout="5s") as client:
        for name in ("n1", "n2"):
            cluster.nodes[name].kill()
        with pytest.raises(Unavailable):
            client.publish(topic, b"to all", partition=led)


def test_a_group_ordered_by_partition_is_served_from_all_nodes_each_partition_in_its_order(
    cluster: ProcessCluster, topic: str
) -> None:
    cluster.create("steps", PARTITIONS, **{"delivery.ordering": "partition"})
    values = [b"%d" % n for n in range(150)]
    found: dict[int, list[int]] = {}
    with Client(cluster.urls, retries=RETRIES, timeout="10s") as client:
        client.publish_many("steps", [Message(v, key=v) for v in values])
        for message in client.consume("steps", group="shop", prefetch=10, timeout="5s"):
            found.setdefault(message.partition, []).append(message.offset)
            message.ack()
    assert sorted(found) == list(range(PARTITIONS))
    for offsets in found.values():
        assert offsets == list(range(len(offsets)))
    assert sum(map(len, found.values())) == len(values)


def _wait_for_more(producers: list[Publishing], before: list[int]) -> None:
    def has_more() -> bool:
        for producer, count in zip(producers, before, strict=True):
            if producer.error is not None:
                raise producer.error
            if len(producer.acknowledged) < count + 100:
                return False
        return True

    eventually(has_more, "producers get on", seconds=90)


def _all_in_sync(cluster: ProcessCluster, topic: str) -> bool:
    with Client(cluster.urls, retries="0s") as client:
        try:
            (shown,) = client.describe_cluster(topic).topics
        except GoqError:
            return False
    return all(len(each.in_sync) == len(NAMES) for each in shown.partitions)
