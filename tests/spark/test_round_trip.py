"""What was published comes out of Spark as it went in, to the last bit."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from goq import limits
from goq.client import Client
from goq.client._sync.publish.frame_publisher import FramePublisher
from goq.frame.encoder import columns_from_messages, encode_frame
from goq.model import Message
from goq.pipeline.arrow.node_source import NodeSource
from goq.pipeline.arrow.tables import MESSAGES_TABLE
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.export import Export
from tests.support.node.running_node import RunningNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = 400
PARTITIONS = 3
SINK_COLUMNS = ("key", "value", "headers", "lane", "deliver_at", "tenant", "partition")

odd_names = st.sampled_from(["\0", " ", '"', "'", "a\nb", "é", "\U0001f980", "\ufeff", "n" * 256])
header = st.tuples(odd_names | st.text(min_size=1, max_size=8), st.binary(max_size=40))
payloads = st.binary(max_size=40) | st.text(max_size=20).map(str.encode)


def messages_with(lanes: int) -> st.SearchStrategy[Message]:
    """Messages with and without everything that Spark has a column for."""
    return st.builds(
        Message,
        value=st.none() | payloads,
        key=st.none() | payloads,
        headers=st.lists(header, max_size=4).flatmap(lambda h: st.sampled_from([h, h * 2])),
        lane=st.none() | st.integers(0, lanes - 1),
        deliver_at_ms=st.just(0) | st.integers(1, time.time_ns() // 1_000_000 + 60_000),
        tenant=st.none() | st.text(min_size=1, max_size=20),
    )


def drawn(strategy: st.SearchStrategy[Message], count: int) -> list[Message]:
    """Return as many messages as a test has examples: queries are slow, messages are not."""
    found: list[Message] = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(message: Message) -> None:
        found.append(message)

    draw()
    chance = random.Random(len(found))
    large = [chance.randbytes(5 * limits.MIB), bytes(5 * limits.MIB)]
    return [*found, *(Message(value, b"large", [("n", value[:9])]) for value in large)]


def publish(client: Client, topic: str, messages: Sequence[Message], default_lane: int) -> None:
    """Store messages in frames of all sizes, with and without compression, in all partitions."""
    partitions = itertools.cycle(range(PARTITIONS))
    sizes = itertools.cycle([1, 7, 40])
    waiting = iter(messages)
    while some := list(itertools.islice(waiting, next(sizes))):
        columns = columns_from_messages(some, default_lane=default_lane)
        frame = encode_frame(columns, compress=len(some) == 40)
        FramePublisher(client).publish(topic, [(next(partitions), frame)])


def logged(client: Client, topic: str) -> list[list[Any]]:
    """Return what each partition has, in its order."""
    found: list[list[Any]] = [[] for _ in range(PARTITIONS)]
    for m in client.read_log(topic):
        said = (m.value, m.key, tuple(m.headers), m.priority, m.deliver_at, m.tenant)
        found[m.partition].append(said)
    return found


def write(frame: DataFrame, node: RunningNode, topic: str) -> None:
    writer = frame.select(*SINK_COLUMNS).write.format("goq").option("server", node.url)
    writer.option("topic", topic).mode("append").save()


def test_messages_of_every_kind_pass_through_an_export_and_spark_unchanged(
    spark: SparkSession, node: RunningNode, topic: str, tmp_path: Path
) -> None:
    with Client(node.url) as client:
        publish(client, topic, drawn(messages_with(3), MESSAGES), 1)
        copy = f"{topic}-copy"
        client.create_topic(copy, PARTITIONS)
        Export(NodeSource(client), LocalDestination(tmp_path), MESSAGES_TABLE, topic).run()
        write(spark.read.parquet(str(tmp_path / "messages")), node, copy)
        wanted, found = logged(client, topic), logged(client, copy)
    assert sum(map(len, wanted)) == MESSAGES + 2
    for mine, theirs in zip(wanted, found, strict=True):
        assert Counter(theirs) == Counter(mine)


def test_messages_of_every_kind_pass_from_topic_to_topic_unchanged_and_in_order(
    spark: SparkSession, node: RunningNode, topic: str
) -> None:
    numbered, copy = f"{topic}-numbered", f"{topic}-copy"
    with Client(node.url) as client:
        for name in (numbered, copy):
            client.create_topic(name, PARTITIONS, {"priority.lanes": "numbers"})
        publish(client, numbered, drawn(messages_with(256), MESSAGES), 128)
        source = spark.read.format("goq").option("server", node.url).option("topic", numbered)
        write(source.load(), node, copy)
        wanted, found = logged(client, numbered), logged(client, copy)
    assert sum(map(len, wanted)) == MESSAGES + 2
    assert found == wanted
