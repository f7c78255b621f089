"""The parts without I/O: retries, batches, receipts, the wire."""

from __future__ import annotations

import itertools
import json

import pytest

from goq.client.delivery_options import TopicPublishSettings
from goq.client.message_batch import MessageBatch, batches_of
from goq.client.messages import PublishedBatch, PublishedRun, joined
from goq.client.protocol import frames as wire
from goq.client.retry import BackoffPolicy, RequestFailure, RetryAttempts
from goq.errors import CorruptData, InvalidFrame, InvalidInput, TimedOut, Unavailable
from goq.frame.encoder import Columns, encode_frame
from goq.frame.hashes import partition_of
from goq.frame.header import parse_header, stamp
from goq.model import Message, Receipt

BROKEN = RequestFailure(Unavailable("broken"), maybe_done=True)
REFUSED = RequestFailure(Unavailable("refused"), maybe_done=False)


def attempts(total_ms: int, *, draw: float = 1.0, now: list[float] | None = None) -> RetryAttempts:
    clock = now or [0.0]
    policy = BackoffPolicy(total_ms, initial_ms=100, pause_ms_max=1000)
    return RetryAttempts(policy, draw=lambda: draw, now_s=lambda: clock[0])


def test_pauses_double_up_to_their_ceiling() -> None:
    trial = attempts(60_000)
    pauses = [trial.pause_s(REFUSED, repeatable=False) for _ in range(6)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_jitter_draws_from_zero() -> None:
    assert attempts(60_000, draw=0.0).pause_s(REFUSED, repeatable=False) == 0.0


def test_the_time_to_try_again_counts_from_the_first_failure() -> None:
    now = [1000.0]
    trial = attempts(300, now=now)
    assert trial.pause_s(REFUSED, repeatable=True) == 0.1
    now[0] += 0.1
    assert trial.pause_s(REFUSED, repeatable=True) is None


def test_nothing_is_tried_again_without_time_for_it() -> None:
    assert attempts(0, draw=0.0).pause_s(REFUSED, repeatable=True) is None


def test_a_node_that_names_a_time_is_obeyed() -> None:
    failure = RequestFailure(Unavailable("", retry_after_ms=1500), maybe_done=False)
    assert attempts(60_000).pause_s(failure, repeatable=False) == 1.5
    assert attempts(1000).pause_s(failure, repeatable=False) is None


def test_only_repeatable_requests_are_sent_again_when_in_doubt() -> None:
    assert attempts(1000).pause_s(BROKEN, repeatable=False) is None
    assert attempts(1000).pause_s(BROKEN, repeatable=True) is not None
    in_doubt = RequestFailure(TimedOut(""), maybe_done=True)
    assert attempts(1000).pause_s(in_doubt, repeatable=False) is None
    wrong = RequestFailure(InvalidInput(""), maybe_done=False)
    assert attempts(1000).pause_s(wrong, repeatable=True) is None


def test_a_batch_is_divided_by_keys_and_loses_nothing() -> None:
    batch = MessageBatch()
    messages = [
        Message(b"%d" % n, b"k%d" % n if n % 3 else None, [("h", b"%d" % n)] if n % 5 == 0 else ())
        for n in range(100)
    ]
    for message in messages[:50]:
        batch.add(message, 1)
    batch.add_values([b"v1", b"v2"], 2)
    for message in messages[50:]:
        batch.add(message, 1)
    whole = [*messages[:50], Message(b"v1"), Message(b"v2"), *messages[50:]]
    shares = batch.divide(4, keyless_to=2, topic=TopicPublishSettings())
    positions = list(itertools.chain.from_iterable(share.positions for share in shares))
    assert sorted(positions) == list(range(102))
    assert [share.positions[0] for share in shares] == sorted(s.positions[0] for s in shares)
    for share in shares:
        keys = share.columns.keys or [None] * len(share.positions)
        for n, position in enumerate(share.positions):
            message = whole[position]
            assert share.columns.values[n] == message.value
            assert keys[n] == message.key
            assert share.columns.headers is not None
            assert tuple(share.columns.headers[n]) == tuple(message.headers)
            wanted = 2 if message.key is None else partition_of(message.key, 4)
            assert share.partition == wanted


def test_named_partitions_win_over_keys() -> None:
    batch = MessageBatch()
    batch.add(Message(b"a", b"k"), 1)
    batch.add(Message(b"b", b"k"), 1, partition=3)
    batch.add_values([b"c"], 1)
    found = {
        s.partition: list(s.positions)
        for s in batch.divide(4, keyless_to=1, topic=TopicPublishSettings())
    }
    assert found.pop(3)[-1] == 1 or partition_of(b"k", 4) == 3
    assert found[1][-1] == 2


def test_batches_keep_to_both_bounds() -> None:
    messages = [Message(bytes(n % 90)) for n in range(200)]
    batches = batches_of(messages, count_max=20, bytes_max=500)
    assert [v for batch in batches for v in batch.values] == [m.value for m in messages]
    assert all(len(batch) <= 20 and batch.size_bytes <= 500 for batch in batches)
    assert len(batches_of([Message(bytes(1000))] * 2, count_max=20, bytes_max=500)) == 2


def test_joined_batches_keep_their_order() -> None:
    first = PublishedBatch(
        "t", [PublishedRun(0, 10, 1, False, [0, 2]), PublishedRun(1, 5, 1, False, [1])]
    )
    second = PublishedBatch("t", [PublishedRun(2, 0, 2, True, range(2))])
    both = joined("t", [first, second])
    assert [str(p.id) for p in both] == ["t:0:10", "t:1:5", "t:0:11", "t:2:0", "t:2:1"]
    assert len(both) == 5
    assert repr(both) == "<5 messages published to t>"


def test_runs_name_each_message_once() -> None:
    receipts = [Receipt(0, 7, n, n + 1) for n in (3, 1, 2, 9)]
    receipts += [Receipt(0, 8, 4, 5), Receipt(1, 7, 0, 5), Receipt(1, 7, 2, 9)]
    assert [str(run) for run in wire.runs_of(receipts)] == [
        "0:7:1+3",
        "0:7:9",
        "0:8:4",
        "1:7:0+9",
    ]


def frame(values: list[bytes | None], base_offset: int = 0) -> bytes:
    plain = encode_frame(Columns(values))
    header = stamp(parse_header(plain), base_offset=base_offset, append_time_us=5, leader_epoch=0)
    return header.pack() + plain[64:]


def with_preface(preface: object, *placed: tuple[int, bytes]) -> bytes:
    text = json.dumps(preface).encode()
    body = b"".join(itertools.chain.from_iterable(wire.place(*item) for item in placed))
    return len(text).to_bytes(4, "little") + text + body


def delivery(ranges: list[list[int]], frames: int) -> dict[str, object]:
    return {
        "partition": 2,
        "token": "3298534883329",
        "lease_until": "2025-01-01T00:00:00.000000Z",
        "ranges": ranges,
        "frames": frames,
    }


def test_deliveries_take_only_what_their_ranges_name() -> None:
    body = with_preface(
        {"deliveries": [delivery([[12, 13, 3], [1, 4, 1], [9, 11, 1]], 2), delivery([], 0)]},
        (2, frame([b"%d" % n for n in range(10)])),
        (2, frame([b"%d" % n for n in range(10, 20)], 10)),
    )
    first, second = wire.decode_deliveries(body)
    pieces = [(p.frame.values(p.start, p.end), p.attempt) for p in first.pieces()]
    assert pieces == [([b"12"], 3), ([b"1", b"2", b"3"], 1), ([b"9"], 1), ([b"10"], 1)]
    assert first.message_count() == 6
    assert str(first.receipts()[1]) == "2:3298534883329:1+3"
    assert first.lease_until == 1_735_689_600_000_000
    assert list(second.pieces()) == []


def test_a_delivery_without_its_frame_is_refused() -> None:
    body = with_preface({"deliveries": [delivery([[5, 12, 1]], 1)]}, (2, frame([b""] * 10)))
    with pytest.raises(InvalidFrame, match="offset 10"):
        list(wire.decode_deliveries(body)[0].pieces())
    with pytest.raises(InvalidFrame, match="last of its frames"):
        wire.decode_deliveries(with_preface({"deliveries": [delivery([[0, 1, 1]], 1)]}))


def test_a_frame_that_arrives_damaged_is_never_handed_on() -> None:
    body = bytearray(with_preface({"next": 3, "start": 0, "end": 3}, (0, frame([b"abc"] * 3))))
    assert len(wire.decode_read(bytes(body), "t", 0).messages) == 3
    body[-10] ^= 1
    with pytest.raises(CorruptData, match="partition 0, offset 0"):
        wire.decode_read(bytes(body), "t", 0)


@pytest.mark.parametrize("body", [b"", b"\x05", b"\xff\xff\xff\xff{}", b"\x00\x00\x00\x00"])
def test_an_answer_without_a_preface_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidFrame, match="preface"):
        wire.decode_read(body, "t", 0)


def test_cut_off_frames_are_refused() -> None:
    body = with_preface({"next": 3, "start": 0, "end": 3}, (0, frame([b"abc"] * 3)))
    for end in range(len(body) - 1, len(body) - 100, -7):
        with pytest.raises(InvalidFrame):
            wire.decode_read(body[:end], "t", 0)
