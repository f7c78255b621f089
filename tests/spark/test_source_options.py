"""What Spark's source does when topics, checkpoints or options are not what a query expects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from pyspark.sql.streaming.datasource import ReadMaxRows

from goq.client import Client
from goq.errors import Conflict, CorruptData, InvalidInput, TopicNotFound
from goq.pipeline.spark.source import BatchReader, StreamReader
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import topic_dir
from tests.support.pipeline.source_reads import ALL, batch, fill, options, stream, values


def test_a_stream_of_an_empty_topic_stands_still_until_there_is_something(
    node: RunningNode, topic: str
) -> None:
    reader = stream(node, topic)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start
    assert values(reader, start, start) == []
    sent = fill(node, topic, 10)
    assert values(reader, start, reader.latestOffset(start, ALL)) == sent


def test_a_stream_reads_a_partition_that_was_added_from_its_beginning(
    node: RunningNode, topic: str
) -> None:
    reader = StreamReader(options(node, topic=topic))
    fill(node, topic, 10)
    start = reader.initialOffset()
    with Client(node.url) as client:
        client.alter_topic(topic, partitions=7)
    sent = fill(node, topic, 50, start=10)
    end = reader.latestOffset(start, ReadMaxRows(1000))
    assert set(end[topic]) == {"began", "id", *(str(p) for p in range(7))}
    assert values(reader, start, end) == sent


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_is_deleted_ends_a_stream_that_names_it(
    node: RunningNode, topic: str, fails: str
) -> None:
    fill(node, topic, 10)
    reader = stream(node, topic, failOnDataLoss=fails)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    with Client(node.url) as client:
        client.delete_topic(topic)
    with pytest.raises(TopicNotFound, match=topic):
        reader.latestOffset(end, ALL)
    with pytest.raises(TopicNotFound, match=topic):
        values(reader, start, end)


def test_a_topic_of_a_pattern_that_is_deleted_fails_the_stream_unless_that_is_allowed(
    node: RunningNode, topic: str
) -> None:
    first, second = f"{topic}.first", f"{topic}.second"
    sent = fill_new(node, first)
    fill_new(node, second)
    said = {"subscribePattern": rf"{topic}\..*", "startingOffsets": "earliest"}
    strict = StreamReader(options(node, **said))
    lenient = StreamReader(options(node, **said, failOnDataLoss="false"))
    start = strict.initialOffset()
    end = strict.latestOffset(start, ALL)
    with Client(node.url) as client:
        client.delete_topic(second)
    with pytest.raises(Conflict, match=f"{second}, partition 0, which is not read any more"):
        strict.latestOffset(end, ALL)
    assert values(lenient, start, end) == sent
    following = lenient.latestOffset(end, ALL)
    assert set(following) == {first}
    assert values(lenient, end, following) == []


def fill_new(node: RunningNode, topic: str) -> list[str]:
    with Client(node.url) as client:
        client.create_topic(topic, 2)
    return fill(node, topic, 10)


@pytest.mark.parametrize("count", [12, 120])
def test_a_topic_that_was_made_anew_fails_the_stream_or_is_read_from_its_beginning(
    node: RunningNode, topic: str, count: int
) -> None:
    strict, lenient = stream(node, topic), stream(node, topic, failOnDataLoss="false")
    start = strict.initialOffset()
    fill(node, topic, 60)
    end = strict.latestOffset(start, ALL)
    with Client(node.url) as client:
        client.delete_topic(topic)
        client.create_topic(topic, 3)
    anew = fill(node, topic, count, start=60)
    with pytest.raises(Conflict, match="deleted or made anew"):
        strict.latestOffset(end, ALL)
    following = lenient.latestOffset(end, ALL)
    assert values(lenient, end, following) == anew
    assert values(lenient, following, lenient.latestOffset(following, ALL)) == []


def test_a_bounded_batch_of_a_topic_that_was_made_anew_begins_at_its_beginning(
    node: RunningNode, topic: str
) -> None:
    lenient = stream(node, topic, failOnDataLoss="false")
    fill(node, topic, 60)
    end = lenient.latestOffset(lenient.initialOffset(), ALL)
    with Client(node.url) as client:
        client.delete_topic(topic)
        client.create_topic(topic, 3)
    anew = fill(node, topic, 120)
    found: list[str] = []
    for _ in range(20):
        following = lenient.latestOffset(end, ReadMaxRows(20))
        found += values(lenient, end, following)
        end = following
    assert sorted(found) == anew


def test_a_checkpoint_without_ids_of_topics_is_gone_on_from(node: RunningNode, topic: str) -> None:
    reader = stream(node, topic)
    sent = fill(node, topic, 10)
    start, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ALL)
    for checkpoint in (start, end):
        del checkpoint[topic]["id"]
    assert values(reader, start, reader.latestOffset(start, ALL)) == sent
    assert values(reader, start, end) == sent


@pytest.mark.parametrize("count", [5, 120])
def test_a_batch_that_is_run_again_after_its_topic_was_made_anew_does_not_end_the_stream(
    node: RunningNode, topic: str, count: int
) -> None:
    strict, lenient = stream(node, topic), stream(node, topic, failOnDataLoss="false")
    fill(node, topic, 30)
    start = strict.latestOffset(strict.initialOffset(), ALL)
    fill(node, topic, 30)
    end = strict.latestOffset(start, ALL)
    with Client(node.url) as client:
        client.delete_topic(topic)
        client.create_topic(topic, 3)
    anew = fill(node, topic, count)
    with pytest.raises(Conflict, match="was deleted and made anew since the batch was planned"):
        values(strict, start, end)
    assert values(lenient, start, end) == []
    assert values(lenient, end, lenient.latestOffset(end, ALL)) == anew


def test_what_retention_deleted_before_it_was_read_fails_the_stream_unless_that_is_allowed(
    node: RunningNode, topic: str
) -> None:
    strict, lenient = stream(node, topic), stream(node, topic, failOnDataLoss="false")
    start = strict.initialOffset()
    broker = node.node.broker
    assert broker is not None
    with Client(node.url) as client:
        for number in range(10):
            client.publish(topic, f"v{number}" + "x" * 50_000, partition=0)
            node.on_loop(broker.topics[topic].partitions[0].trimmer.roll)
        client.alter_topic(topic, settings={"retention.bytes": "64KiB", "segment.bytes": "64KiB"})
        node.on_loop(broker.retention_manager.apply)
        kept = [(m.value or b"").decode() for m in client.read_log(topic)]
    assert 0 < len(kept) < 10
    end = strict.latestOffset(start, ALL)
    with pytest.raises(CorruptData, match=r"messages \[\(0, \d\)\] .* set failOnDataLoss=false"):
        values(strict, start, end)
    assert values(lenient, start, end) == kept
    assert values(batch(node, topic)) == kept


@pytest.mark.parametrize(
    "checkpoint",
    [{"another": {"0": 3}}, {"TOPIC": {"0": 0, "9": 0}}, {"TOPIC": {"0": 99}}],
)
def test_a_checkpoint_that_stands_elsewhere_is_not_gone_on_from(
    node: RunningNode, topic: str, checkpoint: dict[str, Any]
) -> None:
    fill(node, topic, 10)
    stands = {topic if name == "TOPIC" else name: at for name, at in checkpoint.items()}
    with pytest.raises(Conflict, match="the checkpoint is that of a query of other topics"):
        stream(node, topic).latestOffset(stands, ALL)


@pytest.mark.parametrize("checkpoint", [7, {"orders": 7}, {"sources": {"a": "b"}}, None])
def test_a_checkpoint_of_another_source_is_told_from_goqs(
    node: RunningNode, topic: str, checkpoint: Any
) -> None:
    with pytest.raises(Conflict, match="use a new checkpointLocation"):
        stream(node, topic).latestOffset(checkpoint, ALL)


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ({"0": 0, "1": 0, "2": 0, "3": 0}, r"names the partitions \[0, 1, 2, 3\]"),
        ({"0": 0}, "name each"),
        ({"0": -3, "1": 0, "2": 0}, "says -3 for .*; -2 is its first offset, -1 its end"),
        ({"0": 0, "1": 0, "2": 10_000}, "partition 2, which ends at"),
    ],
)
@pytest.mark.parametrize("field", ["startingOffsets", "endingOffsets"])
def test_offsets_that_cannot_be_meant_are_refused(
    node: RunningNode, topic: str, offsets: dict[str, int], said: str, field: str
) -> None:
    fill(node, topic, 10)
    with pytest.raises(InvalidInput, match=said) as refused:
        batch(node, topic, **{field: json.dumps({topic: offsets})}).partitions()
    assert refused.value.field == field


def test_offsets_of_a_topic_that_is_not_read_are_refused(node: RunningNode, topic: str) -> None:
    every = {name: dict.fromkeys("012", 0) for name in (topic, "misspelt")}
    with pytest.raises(InvalidInput, match="'misspelt', which is not read"):
        batch(node, topic, startingOffsets=json.dumps(every)).partitions()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"subscribe": "other"}, "one of topic, subscribe and subscribePattern"),
        ({"topic": " , "}, "one of topic, subscribe and subscribePattern"),
        ({"columns": "key, value,key"}, "'key' is named twice"),
        ({"columns": "Value"}, "no column 'Value'"),
        ({"startingOffsets": "soon"}, "neither earliest nor latest"),
        ({"minPartitions": "-1"}, "not a number"),
        ({"table": "nope"}, "there is no table 'nope'"),
        ({"table": "events", "columns": "value"}, "there is no column 'value'"),
        ({"startingOffsets": "latest"}, "has no rows"),
        ({"endingOffsets": "earliest"}, "has no rows"),
        ({"partitions": "0,9"}, "there is no partition 9"),
        ({"failOnDataLos": "false"}, "unknown option 'failondatalos'; there are .*failondataloss"),
    ],
)
def test_options_that_would_read_something_else_or_nothing_are_refused(
    node: RunningNode, topic: str, said: dict[str, str], why: str
) -> None:
    with pytest.raises(InvalidInput, match=why):
        batch(node, **{"topic": topic, **said}).partitions()


def test_a_stream_that_is_given_an_end_is_refused(node: RunningNode, topic: str) -> None:
    with pytest.raises(InvalidInput, match="a stream has no end"):
        stream(node, topic, endingOffsets=json.dumps({topic: dict.fromkeys("012", 5)}))


def test_a_pattern_does_not_match_what_the_sink_keeps_beside_a_topic(
    node: RunningNode, topic: str
) -> None:
    sent = fill(node, topic, 10)
    with Client(node.url) as client:
        for name in (f"{topic}.staged", f"{topic}.commits", f"{topic}.late.commits"):
            client.create_topic(name, 1)
            client.publish(name, f"in {name}")
    found = values(BatchReader(options(node, subscribePattern=rf"{topic}.*")))
    assert found == sorted([*sent, f"in {topic}.late.commits"])
    assert values(batch(node, f"{topic}.staged")) == [f"in {topic}.staged"]


def test_damaged_messages_fail_who_asks_for_them_unless_that_is_allowed(tmp_path: Path) -> None:
    with running_node(tmp_path) as node, Client(node.url) as client:
        client.create_topic("t", 1)
        for number in range(6):
            client.publish("t", f"value {number}")
    (segment,) = (topic_dir(tmp_path, "t") / "0" / "messages").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"value 3")] ^= 1
    segment.write_bytes(data)
    with running_node(tmp_path) as node:
        with pytest.raises(CorruptData, match=r"messages \[\(3, 4\)\] of t, partition 0, are gone"):
            values(batch(node, "t"))
        whole = values(batch(node, "t", failOnDataLoss="false"))
        assert whole == [f"value {number}" for number in (0, 1, 2, 4, 5)]
        before = {"startingOffsets": '{"t": {"0": 0}}', "endingOffsets": '{"t": {"0": 3}}'}
        behind = {"startingOffsets": '{"t": {"0": 4}}'}
        assert values(batch(node, "t", **before)) == whole[:3]
        assert values(batch(node, "t", **behind)) == whole[3:]


@pytest.mark.parametrize("table", ["messages", "events"])
def test_a_query_that_is_run_again_does_not_read_a_topic_that_was_made_anew(
    node: RunningNode, topic: str, table: str
) -> None:
    reader = batch(node, topic, table=table)
    fill(node, topic, 60)
    with Client(node.url) as client:
        list(client.receive(topic, "group", max_messages=60))
        tasks = reader.partitions()
        assert sum(each.num_rows for task in tasks for each in reader.read(task)) == 60
        client.delete_topic(topic)
        client.create_topic(topic, 3)
        fill(node, topic, 60)
        list(client.receive(topic, "group", max_messages=60))
    for task in tasks:
        with pytest.raises(Conflict, match="deleted and created again since the query was planned"):
            next(iter(reader.read(task)))
