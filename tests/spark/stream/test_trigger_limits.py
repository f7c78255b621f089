"""The batches of a stream: how large, and when due. The ends of queries, by time."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMinRows

from goq.client import Client
from goq.errors import InvalidInput
from goq.pipeline.spark.offset_ranges import backlog, from_json, limited
from goq.pipeline.spark.source import BatchReader, StreamReader
from goq.pipeline.spark.source_options import SourceOptions
from goq.pipeline.spark.trigger_limits import TriggerLimits
from tests.support.node.running_node import RunningNode

START = {"t": {0: 0, 1: 0}}


def parse(**said: str) -> SourceOptions:
    return SourceOptions.parse({"topic": "t", **said})


def limits_at(now_s: list[float], **said: str) -> TriggerLimits:
    return TriggerLimits(parse(**said), lambda: now_s[0])


def test_a_batch_waits_for_its_least_messages_or_until_its_delay_is_over() -> None:
    now_s = [100.0]
    limits = limits_at(now_s, minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    limit = limits.default()
    assert limit == ReadMinRows(10)
    assert not limits.is_due(limit, START, {"t": {0: 9, 1: 0}})
    assert limits.is_due(limit, START, {"t": {0: 9, 1: 1}})
    now_s[0] = 129.9
    assert not limits.is_due(limit, START, {"t": {0: 1, 1: 0}})
    now_s[0] = 130.0
    assert limits.is_due(limit, START, {"t": {0: 1, 1: 0}})
    assert not limits.is_due(limit, START, {"t": {0: 1, 1: 0}})


def test_the_delay_goes_on_while_there_is_nothing() -> None:
    now_s = [0.0]
    limits = limits_at(now_s, minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    now_s[0] = 40.0
    assert limits.is_due(limits.default(), START, START)
    assert limits.is_due(limits.default(), START, {"t": {0: 1, 1: 0}})


def test_a_trigger_that_asks_for_all_gets_all() -> None:
    limits = limits_at([0.0], minOffsetsPerTrigger="10", maxOffsetsPerTrigger="1")
    end = {"t": {0: 5, 1: 0}}
    assert limits.is_due(ReadAllAvailable(), START, end)
    assert limits.bounded(ReadAllAvailable(), START, end, dict) == end


def test_a_batch_has_about_as_many_bytes_as_asked() -> None:
    limits = limits_at([0.0], maxBytesPerTrigger="10KiB")
    end = {"t": {0: 300, 1: 100}, "u": {0: 100}}
    assert limits.default() == ReadMaxBytes(10240)
    bounded = limits.bounded(limits.default(), {}, end, lambda: {"t": 100.0, "u": 1000.0})
    share = 10240 / (400 * 100 + 100 * 1000)
    assert bounded == {
        "t": {0: math.ceil(300 * share), 1: math.ceil(100 * share)},
        "u": {0: math.ceil(100 * share)},
    }
    assert limits.bounded(limits.default(), bounded, bounded, dict) == bounded


def test_a_message_larger_than_the_bound_is_a_batch() -> None:
    assert limited({}, {"t": {0: 5}}, 1, {"t": 1e9}) == {"t": {0: 1}}
    assert limited({}, {"t": {0: 5}}, 5) == {"t": {0: 5}}


@pytest.fixture
def stepped(node: RunningNode, topic: str) -> tuple[RunningNode, str, list[int]]:
    """A topic with six messages in partition 0, and the times of their appends in milliseconds."""
    with Client(node.url) as client:
        for number in range(6):
            client.publish(topic, "x" * 1000, partition=0, key=str(number))
            node.clock.ahead_ms += 10
        times_us = [message.timestamp for message in client.read_log(topic)]
    return node, topic, [-(-us // 1000) for us in times_us]


def offsets(node: RunningNode, **said: str) -> list[int]:
    reader = BatchReader(SourceOptions.parse({"server": node.url, "columns": "offset", **said}))
    batches = [read for task in reader.partitions() for read in reader.read(task)]
    return sorted(each for batch in batches for each in batch["offset"].to_pylist())


def test_a_query_between_two_times_has_the_messages_between_them(
    stepped: tuple[RunningNode, str, list[int]],
) -> None:
    node, topic, times_ms = stepped
    first, last = str(times_ms[1] - 1), str(times_ms[4] - 1)
    found = offsets(node, topic=topic, startingTimestamp=first, endingTimestamp=last)
    assert found == [1, 2, 3]

    def each(time: str) -> str:
        return json.dumps({topic: dict.fromkeys("012", int(time))})

    by_partition = {
        "startingOffsetsByTimestamp": each(first),
        "endingOffsetsByTimestamp": each(last),
    }
    assert offsets(node, topic=topic, **by_partition) == [1, 2, 3]
    with pytest.raises(InvalidInput, match="ends at 1, before its start at 4"):
        offsets(node, topic=topic, startingTimestamp=last, endingTimestamp=first)
    one = json.dumps({topic: {"0": int(first)}})
    with pytest.raises(InvalidInput, match=r"names the partitions \[0\] .*: name each"):
        offsets(node, topic=topic, startingOffsetsByTimestamp=one)


def batch_sizes(node: RunningNode, topic: str, limit: ReadLimit | None, **said: str) -> list[int]:
    options = {"server": node.url, "topic": topic, "startingOffsets": "earliest", **said}
    reader = StreamReader(SourceOptions.parse(options))
    at, found = reader.initialOffset(), list[int]()
    while (end := reader.latestOffset(at, limit or reader.getDefaultReadLimit())) != at:
        found.append(backlog(from_json(at).offsets, from_json(end).offsets))
        at = end
    everything = from_json(reader.latestOffset(at, ReadAllAvailable()))
    assert from_json(reader.reportLatestOffset()).offsets == everything.offsets
    return found


def test_the_batches_of_a_stream_keep_to_its_options(
    stepped: tuple[RunningNode, str, list[int]],
) -> None:
    node, topic, _ = stepped
    assert batch_sizes(node, topic, None) == [6]
    assert batch_sizes(node, topic, None, maxBytesPerTrigger="2KiB") == [2, 2, 2]
    assert batch_sizes(node, topic, None, minOffsetsPerTrigger="6") == [6]
    assert batch_sizes(node, topic, None, minOffsetsPerTrigger="7") == []
    assert batch_sizes(node, topic, ReadAllAvailable(), minOffsetsPerTrigger="7") == [6]


def test_a_stream_until_now_does_not_wait_for_more(
    stepped: tuple[RunningNode, str, list[int]],
) -> None:
    node, topic, _ = stepped
    options = {"server": node.url, "topic": topic, "startingOffsets": "earliest"}
    reader = StreamReader(SourceOptions.parse({**options, "minOffsetsPerTrigger": "7"}))
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert end[topic]["0"] == 6


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger|size"),
        ({"maxTriggerDelay": "soon"}, "soon"),
        ({"endingOffsets": "latest", "endingTimestamp": "now"}, "not both"),
        ({"startingTimestamp": "1", "startingOffsetsByTimestamp": "{}"}, "not both"),
        ({"endingOffsetsByTimestamp": "7"}, "no times in milliseconds"),
        ({"table": "events", "endingTimestamp": "1"}, "endingTimestamp is for messages"),
        ({"table": "events", "maxBytesPerTrigger": "1KiB"}, "is for messages"),
        ({"provider": "goq"}, "CREATE TEMPORARY VIEW"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(said: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        parse(**said)


@pytest.mark.parametrize(("end", "is_refused"), [(4, True), (5, False), (-1, False)])
def test_an_end_before_the_start_is_refused(end: int, is_refused: bool) -> None:
    said: dict[str, Any] = {
        "startingOffsets": json.dumps({"t": {"0": 5}}),
        "endingOffsets": json.dumps({"t": {"0": end}}),
    }
    if not is_refused:
        BatchReader(parse(**said))
        return
    with pytest.raises(InvalidInput, match="ends at 4, before its start at 5") as refused:
        BatchReader(parse(**said))
    assert refused.value.field == "endingOffsets"


def test_a_stream_until_a_time_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a stream has no end"):
        StreamReader(parse(endingTimestamp="1"))
