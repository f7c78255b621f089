"""What Spark writes is what goq has: every row once, in its partition, with all that it says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goq import limits
from goq.client.delivery_options import lanes_of
from goq.errors import InvalidInput, TooLarge
from goq.frame.encoder import NO_PRODUCER
from goq.frame.hashes import partition_of
from goq.frame.validation import check_frame
from goq.frame.view import FrameView
from goq.model import Message, check_name
from goq.pipeline.arrow.frames import FRAME_BYTES, FrameTarget, frame_of, shares_of
from goq.pipeline.arrow.schema import HEADERS, TIMESTAMP
from goq.pipeline.spark.sink_options import COLUMNS, NAME_CHARS_MAX, SinkOptions, check_columns
from goq.pipeline.spark.transaction_topics import COMMITS_SUFFIX

TOO_MANY = str(limits.FRAME_MESSAGES_MAX + 1)
TARGET = FrameTarget(5, lanes_of("high,normal,low"), 1000)
ROWS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("lane", pa.int32()),
        ("deliver_at", TIMESTAMP),
        ("tenant", pa.string()),
        ("partition", pa.int32()),
    ]
)

times = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)).map(
    lambda time: time.replace(tzinfo=UTC)
)
headers = st.lists(
    st.fixed_dictionaries({"key": st.text(min_size=1, max_size=5), "value": st.binary(max_size=5)}),
    max_size=3,
)
rows = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(max_size=5),
        "value": st.none() | st.binary(max_size=20),
        "headers": st.none() | headers,
        "lane": st.none() | st.integers(0, 2),
        "deliver_at": st.none() | times,
        "tenant": st.none() | st.text(min_size=1, max_size=5),
        "partition": st.none() | st.integers(0, 4),
    }
)


def written(
    batch: pa.RecordBatch, target: FrameTarget = TARGET, keyless_to: int = 3
) -> list[tuple[int, Message]]:
    """Return the messages that the frames of a batch have, by partition, in their order."""
    found = []
    for shares in shares_of(batch, target, keyless_to):
        assert len({share.partition for share in shares}) == len(shares)
        for partition, chosen in shares:
            frame = frame_of(batch, chosen, target, NO_PRODUCER)
            view = FrameView.parse(frame)
            check_frame(view)
            assert view.header.message_count <= target.frame_messages_max
            found += [(partition, m) for m in view.messages(0, view.header.message_count)]
    return sorted(found, key=lambda each: each[0])


def expected(row: dict[str, Any]) -> tuple[int, Message]:
    partition = row["partition"]
    if partition is None:
        partition = 3 if row["key"] is None else partition_of(row["key"], 5)
    deliver_at_ms = 0
    if row["deliver_at"] is not None:
        since = row["deliver_at"] - datetime(1970, 1, 1, tzinfo=UTC)
        deliver_at_ms = -(-since // timedelta(milliseconds=1))
    message = Message(
        row["value"],
        row["key"],
        tuple((h["key"], h["value"]) for h in row["headers"] or ()),
        lane=1 if row["lane"] is None else row["lane"],
        deliver_at_ms=deliver_at_ms,
        tenant=row["tenant"],
    )
    return partition, message


def plain(message: Message) -> tuple[object, ...]:
    lane = 1 if message.lane is None else message.lane
    return (
        message.value,
        message.key,
        tuple(message.headers),
        lane,
        message.deliver_at_ms,
        message.tenant,
    )


@settings(deadline=None)
@given(st.lists(rows, max_size=12), st.integers(1, 4), st.integers(0, 3))
def test_a_row_becomes_the_message_that_it_says(
    some: list[dict[str, Any]], most: int, skipped: int
) -> None:
    batch = pa.RecordBatch.from_pylist(some, schema=ROWS).slice(skipped)
    found = written(batch, TARGET._replace(frame_messages_max=most))
    wanted = sorted([expected(row) for row in some[skipped:]], key=lambda each: each[0])
    assert [(p, plain(m)) for p, m in found] == [(p, plain(m)) for p, m in wanted]


def test_text_is_as_good_as_bytes_and_names_as_good_as_numbers_of_lanes() -> None:
    batch = pa.RecordBatch.from_pylist(
        [
            {"key": "é", "value": "ü", "priority": "low", "headers": [{"key": "a", "value": "b"}]},
            {"key": None, "value": "", "priority": None, "headers": None},
        ]
    )
    found = written(batch, TARGET._replace(partitions=1), 0)
    assert [plain(m) for _, m in found] == [
        ("ü".encode(), "é".encode(), (("a", b"b"),), 2, 0, None),
        (b"", None, (), 1, 0, None),
    ]


def test_frames_end_before_they_are_too_large_and_large_values_have_their_own() -> None:
    values = [b"s" * 1000] * 10 + [b"l" * 5 * limits.MIB] + [b"s" * 1000] * 2_000
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    requests = list(shares_of(batch, FrameTarget(1, TARGET.lanes, 100_000), 0))
    counts = [len(share.rows) for shares in requests for share in shares]
    assert sum(counts) == len(values)
    assert counts[:2] == [10, 1]
    assert all(count * 1000 <= FRAME_BYTES for count in counts if count != 1)
    assert [m.value for _, m in written(batch, FrameTarget(1, TARGET.lanes, 60_000), 0)] == values


def test_what_is_over_every_limit_is_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b"x" * (limits.VALUE_BYTES_MAX + 1)]})
    with pytest.raises(TooLarge):
        written(batch)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"partition": 5}, "partition"),
        ({"partition": -1}, "partition"),
        ({"lane": 3}, "lane"),
        ({"priority": "urgent"}, "priority"),
        ({"deliver_at": datetime(1960, 1, 1, tzinfo=UTC)}, "deliver_at"),
        ({"headers": [{"key": "a", "value": None}]}, "headers"),
        ({"headers": [{"key": None, "value": b"a"}]}, "headers"),
    ],
)
def test_a_row_that_no_message_can_be_is_refused_by_the_name_of_its_column(
    row: dict[str, Any], field: str
) -> None:
    types = {**{f.name: f.type for f in ROWS}, "priority": pa.string()}
    schema = pa.schema([(name, types[name]) for name in ("value", *row)])
    batch = pa.RecordBatch.from_pylist([{"value": b"v", **row}], schema=schema)
    with pytest.raises(InvalidInput) as refused:
        written(batch)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": "string"}, "no column value"),
        ({"value": "int"}, "it can be binary or string"),
        ({"value": "string", "offset": "bigint"}, "goq has no column 'offset' to write"),
        ({"value": "string", "headers": "map<string,string>"}, "it can be array<struct"),
        ({"value": "string", "lane": "int", "priority": "string"}, "not both"),
        ({"value": "string", "deliver_at": "string"}, "it can be timestamp"),
    ],
)
def test_columns_that_are_not_those_of_messages_are_refused(
    columns: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        check_columns(columns.items())


def test_every_column_with_every_type_that_it_may_have_is_taken() -> None:
    for name, kinds in COLUMNS.items():
        for kind in kinds:
            check_columns({"value": "binary", name: kind}.items())


def test_rows_have_a_topic_unless_the_options_do() -> None:
    with pytest.raises(InvalidInput, match="give the topic to write to, as an option or a column"):
        check_columns([("value", "binary")], with_topic=True)
    check_columns([("value", "binary"), ("topic", "string")], with_topic=True)
    with pytest.raises(InvalidInput, match="no column 'topic'"):
        check_columns([("value", "binary"), ("topic", "string")])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "a b"}, "not allowed"),
        ({"topic": "x" * (NAME_CHARS_MAX + 1)}, "at most 192 characters: beside it"),
        ({"topic": "t", "table": "events"}, "unknown option 'table'"),
        ({"topic": "t", "txnId": "x" * (limits.TXN_ID_BYTES_MAX + 1)}, "at most 500 bytes"),
        ({"topic": "t", "batchMessages": "0"}, "batchMessages is 1 to"),
        (
            {"topic": "t", "batchMessages": TOO_MANY},
            "batchMessages is 1 to",
        ),
    ],
)
def test_what_is_wrong_with_an_option_of_the_sink_is_said(
    options: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        SinkOptions.parse(options)


def test_the_longest_name_leaves_room_for_those_of_the_topics_beside_it() -> None:
    name = SinkOptions.parse({"topic": "x" * NAME_CHARS_MAX}).topic
    assert check_name(name + COMMITS_SUFFIX, "topic")


def test_options_may_be_written_in_any_case_and_sparks_own_are_left_to_spark() -> None:
    found = SinkOptions.parse(
        {
            "TOPIC": "t",
            "txnid": "x" * limits.TXN_ID_BYTES_MAX,
            "batchMessages": str(limits.FRAME_MESSAGES_MAX),
            "checkpointLocation": "/c",
        }
    )
    assert (found.topic, found.frame_messages_max) == ("t", limits.FRAME_MESSAGES_MAX)
    assert found.servers == ("http://127.0.0.1:8080",)
