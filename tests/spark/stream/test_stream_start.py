"""Where a stream begins that has no committed batch yet, and what it does with an end gone back."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from pyspark.sql.streaming.datasource import ReadMaxRows

from goq.client import Client
from goq.errors import CorruptData
from goq.pipeline.spark.source import StreamReader
from tests.support.node.running_node import RunningNode
from tests.support.pipeline.source_reads import ALL, fill, options, stream, values


def latest(node: RunningNode, topic: str, **said: str) -> StreamReader:
    return StreamReader(options(node, topic=topic, startingOffsets="latest", **said))


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_first_batch_has_the_same_messages_when_it_is_run_again_later(
    node: RunningNode, topic: str, fails: str
) -> None:
    fill(node, topic, 30)
    before = latest(node, topic, failOnDataLoss=fails)
    start = before.initialOffset()
    sent = fill(node, topic, 10, start=30)
    end = before.latestOffset(start, ALL)
    later = fill(node, topic, 10, start=40)
    after = latest(node, topic, failOnDataLoss=fails)
    assert values(after, after.initialOffset(), end) == sent
    assert values(after, end, after.latestOffset(end, ALL)) == later


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_stream_from_the_end_on_has_nothing_of_before_though_messages_come_as_it_starts(
    node: RunningNode, topic: str, fails: str
) -> None:
    fill(node, topic, 30)
    reader = latest(node, topic, failOnDataLoss=fails)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    sent = fill(node, topic, 10, start=30)
    assert values(reader, reader.initialOffset(), end) == []
    following = reader.latestOffset(end, ALL)
    assert values(reader, end, following) == sent
    assert reader.latestOffset(following, ALL) == following


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_new_stream_until_now_may_begin_while_messages_come(
    node: RunningNode, topic: str, fails: str
) -> None:
    fill(node, topic, 30)
    reader = latest(node, topic, failOnDataLoss=fails)
    reader.prepareForTriggerAvailableNow()
    fill(node, topic, 10, start=30)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert end == start
    fill(node, topic, 10, start=40)
    assert values(reader, reader.initialOffset(), end) == []


def test_what_retention_took_of_a_first_batch_before_it_was_run_again_fails_the_stream(
    node: RunningNode, topic: str
) -> None:
    before = stream(node, topic)
    broker = node.node.broker
    assert broker is not None
    with Client(node.url) as client:
        for number in range(5):
            client.publish(topic, f"v{number}" + "x" * 50_000, partition=0)
            node.on_loop(broker.topics[topic].partitions[0].trimmer.roll)
        end = before.latestOffset(before.initialOffset(), ALL)
        client.alter_topic(topic, settings={"retention.bytes": "64KiB", "segment.bytes": "64KiB"})
        node.on_loop(broker.retention_manager.apply)
    after = stream(node, topic)
    assert after.initialOffset()[topic]["0"] > 0
    with pytest.raises(CorruptData, match="gone: deleted by retention before they were read"):
        values(after, after.initialOffset(), end)


def test_bounded_first_batches_leave_nothing_out(node: RunningNode, topic: str) -> None:
    sent = fill(node, topic, 30)
    reader = stream(node, topic, maxOffsetsPerTrigger="7")
    start, found = reader.initialOffset(), list[str]()
    while (end := reader.latestOffset(start, ReadMaxRows(7))) != start:
        found += values(reader, reader.initialOffset() if not found else start, end)
        start = end
    assert sorted(found) == sent


def test_a_partition_whose_end_went_back_is_not_read_from_its_beginning_again(
    node: RunningNode, topic: str
) -> None:
    fill(node, topic, 30)
    lenient = stream(node, topic, failOnDataLoss="false")
    there = lenient.latestOffset(lenient.initialOffset(), ALL)
    beyond = {topic: {p: at if p == "id" else at + 5 for p, at in there[topic].items()
                      if p != "began"}}  # fmt: skip
    end = lenient.latestOffset(beyond, ALL)
    assert values(lenient, beyond, end) == []
    sent = fill(node, topic, 10, start=30)
    assert values(lenient, end, lenient.latestOffset(end, ALL)) == sent
