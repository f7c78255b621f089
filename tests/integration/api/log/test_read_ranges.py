"""Reading by time and in the background: exact, in pages, and in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any
from urllib.parse import quote

import pytest

from goq import limits
from goq.client import Client
from goq.errors import InvalidInput
from goq.storage.log.segment import WriteBatch
from goq.units import format_time_us
from tests.support.api import frames as f
from tests.support.api.calls import publish, values
from tests.support.broker.partition_internals import has_work_waiting, message_log, state_of
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node

START_US = 1_700_000_000_000_000
YEAR_US = 365 * 86_400_000_000


class MovingClock:
    """The node's clock, where the test puts it."""

    def __init__(self, node: RunningNode) -> None:
        self.now_us = START_US
        assert node.node.broker is not None
        self._clock: Any = node.node.broker.clock
        self._clock.wall_us = lambda: self.now_us

    def let_go(self) -> None:
        del self._clock.wall_us


@pytest.fixture
def clock(node: RunningNode) -> Iterator[MovingClock]:
    moving = MovingClock(node)
    yield moving
    moving.let_go()


def read(node: RunningNode, topic: str, query: str) -> dict[str, Any]:
    answer: dict[str, Any] = node.call("GET", f"/v1/topics/{topic}/messages?partition=0&{query}")
    return answer


def time(time_us: int) -> str:
    return quote(format_time_us(time_us), safe="")


STEPS_US = [0, 10, 10, 5, 20, YEAR_US, 21, 3, 15, 10]


@pytest.fixture
def stepping(node: RunningNode, topic: str, clock: MovingClock) -> list[int]:
    """Ten messages in partition 0, while the clock goes to and fro; their times."""
    node.call("PATCH", f"/v1/topics/{topic}", {"settings": {"retention.age": "none"}})
    for number, step_us in enumerate(STEPS_US):
        clock.now_us = START_US + step_us
        publish(node, topic, str(number), partition=0)
    return [START_US + step_us for step_us in STEPS_US]


@pytest.mark.parametrize("background", ["", "&background=true"])
def test_a_range_is_what_a_filter_leaves(
    node: RunningNode, topic: str, stepping: list[int], background: str
) -> None:
    edges = sorted({t + d for t in stepping for d in (-1, 0, 1)})
    for from_us in edges[::2]:
        for to_us in [*edges[1::3], 2**60]:
            if from_us > to_us:
                continue
            times = f"from_time={time(from_us)}&to_time={time(min(to_us, 2**57))}"
            found = read(node, topic, times + background)
            assert [m["offset"] for m in found["messages"]] == [
                n for n, t in enumerate(stepping) if from_us <= t < to_us
            ]
            assert (found["next"], found["end"]) == (10, 10)


@pytest.mark.usefixtures("stepping")
def test_pages_of_a_range_are_read_on_from_their_offset(node: RunningNode, topic: str) -> None:
    times = f"from_time={time(START_US + 10)}&to_time={time(START_US + 21)}"
    found, offset, pages = [], 0, 0
    while True:
        page = read(node, topic, f"{times}&offset={offset}&limit=2")
        found += values(page["messages"])
        assert page["next"] > offset
        offset, pages = page["next"], pages + 1
        if offset >= page["end"]:
            break
    assert found == ["1", "2", "4", "8", "9"]
    assert pages <= 4


@pytest.mark.usefixtures("stepping")
def test_a_range_before_the_log_or_after_it_is_empty_and_all_of_it(
    node: RunningNode, topic: str
) -> None:
    for times in ("to_time=2001-01-01", "from_time=2100-01-01", "from_time=9999999999999"):
        assert read(node, topic, times) == {"messages": [], "next": 10, "damaged": [], "end": 10}
    for times in (
        "from_time=0001-01-01&to_time=1900-01-01",
        "from_time=999999999999999999",
        "to_time=00000",
    ):
        assert read(node, topic, times)["messages"] == []
    for times in (
        "from_time=0001-01-01&to_time=999999999999999999",
        "from_time=-9999999d&to_time=%2B9999999d",
    ):
        assert len(read(node, topic, times)["messages"]) == 10


def test_a_range_cuts_frames_by_offset_and_limit(
    node: RunningNode, topic: str, clock: MovingClock
) -> None:
    for number in range(3):
        clock.now_us = START_US + number
        body = f.placed(f.frame(*[b"%d.%d" % (number, n) for n in range(4)]), 0)
        node.request("POST", f"/v1/topics/{topic}/messages", body, f.FRAMES)
    path = f"/v1/topics/{topic}/messages?partition=0&from_time={time(START_US + 1)}"
    for query, expected, following in (
        ("", [4, 5, 6, 7, 8, 9, 10, 11], 12),
        ("&offset=6&limit=1", [6], 7),
        ("&offset=6&limit=3", [6, 7, 8], 9),
        ("&offset=1&limit=4", [4, 5, 6, 7], 8),
        ("&offset=12", [], 12),
        ("&offset=20", [], 20),
    ):
        answer = node.request("GET", path + query, headers=f.ACCEPT_FRAMES)
        preface, frames = f.answered(answer.body)
        got = [o for _, v in frames for o in range(v.header.base_offset, v.header.end_offset)]
        assert (got, preface["next"], preface["end"]) == (expected, following, 12)
        found = node.call("GET", path + query)
        assert [m["offset"] for m in found["messages"]] == expected
        assert found["next"] == following


def test_a_range_without_an_end_waits_for_what_comes(
    node: RunningNode, topic: str, clock: MovingClock
) -> None:
    publish(node, topic, "early", partition=0)
    found: list[dict[str, Any]] = []
    query = f"from_time={time(START_US + 5)}&wait=20s"
    thread = threading.Thread(target=lambda: found.append(read(node, topic, query)))
    thread.start()
    readers = node.node.broker.topics[topic].receiver.log_readers.waiters
    eventually(lambda: node.on_loop(lambda: readers.count("0")))
    clock.now_us += 5
    publish(node, topic, "late", partition=0)
    thread.join(60)
    assert values(found[0]["messages"]) == ["late"]
    assert read(node, topic, f"from_time={time(START_US + 6)}&wait=20ms")["messages"] == []


@pytest.mark.parametrize("background", [False, True])
def test_the_client_reads_a_range_of_all_partitions_as_the_clock_goes_to_and_fro(
    node: RunningNode, topic: str, clock: MovingClock, background: bool
) -> None:
    # A clock a year ahead would let retention delete the messages before it.
    node.call("PATCH", f"/v1/topics/{topic}", {"settings": {"retention.age": "none"}})
    random, known = Random(5), []
    for number in range(60):
        clock.now_us = START_US + random.choice([0, 3, 5, 8, YEAR_US])
        [result] = publish(node, topic, str(number), partition=number % 2)
        known.append((clock.now_us, number % 2, result["offset"]))
    with Client(node.url) as client:
        for from_us, to_us in ((3, 8), (0, 1), (4, 5), (5, YEAR_US + 1), (9, 10)):
            found = client.read_log(
                topic,
                from_time=format_time_us(START_US + from_us),
                to_time=format_time_us(START_US + to_us),
                background=background,
            )
            wanted = [k for k in known if from_us <= k[0] - START_US < to_us]
            got = [(m.timestamp, m.partition, m.offset) for m in found]
            assert sorted(got) == sorted(wanted)
            for number in (0, 1):
                offsets = [offset for _, partition, offset in got if partition == number]
                assert offsets == sorted(offsets)
        with pytest.raises(InvalidInput, match="to_time is before from_time"):
            list(client.read_log(topic, from_time="-1m", to_time="-2m"))


def test_a_background_read_is_in_pieces(node: RunningNode, topic: str) -> None:
    body = f.placed(f.frame(bytes(limits.MIB // 2)), 0)
    for _ in range(6):
        node.request("POST", f"/v1/topics/{topic}/messages", body, f.FRAMES)
    publish(node, topic, *map(str, range(limits.BACKGROUND_JSON_MESSAGES + 1)), partition=0)
    end = 6 + limits.BACKGROUND_JSON_MESSAGES + 1
    offset, pieces = 0, []
    while offset < end:
        piece = read(node, topic, f"background=true&limit=10000&offset={offset}")
        assert [m["offset"] for m in piece["messages"]] == [*range(offset, piece["next"])]
        offset = piece["next"]
        pieces.append(len(piece["messages"]))
        assert piece["end"] == end
    assert len(pieces) >= 5
    assert max(pieces) <= limits.BACKGROUND_JSON_MESSAGES


def test_a_background_read_of_frames_has_larger_pieces(node: RunningNode, topic: str) -> None:
    body = f.placed(f.frame(bytes(limits.MIB // 2)), 0)
    for _ in range(12):
        node.request("POST", f"/v1/topics/{topic}/messages", body, f.FRAMES)
    with Client(node.url) as client:
        sizes, offset = [], 0
        while offset < 12:
            piece = client.read(topic, partition=0, offset=offset, background=True)
            sizes.append(sum(view.header.frame_bytes for view in piece.frames))
            offset = piece.next
    assert max(sizes) <= limits.BACKGROUND_PIECE_BYTES
    assert sizes[0] > limits.BACKGROUND_PIECE_BYTES // 2
    assert len(sizes) == 2


def test_too_many_background_reads_are_refused(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(node, topic, "x", partition=0)
    monkeypatch.setattr(limits, "BACKGROUND_READS_WAITING_MAX", -1)
    refused = node.request("GET", f"/v1/topics/{topic}/messages?partition=0&background=true")
    assert (refused.status, refused.json["code"]) == (429, "too_many_requests")
    assert int(refused.headers["retry-after"]) >= 1
    refused = node.request("GET", f"/v1/topics/{topic}/messages?partition=0&background=yes")
    assert (refused.status, refused.json["field"]) == (400, "background")


def test_damage_in_a_range_is_reported_and_the_rest_given() -> None:
    """On a node of its own, which is not healthy afterwards."""
    with running_node() as node:
        for topic, background in (("t", ""), ("u", "&background=true")):
            check_damage_in_a_range(node, topic, background)


def check_damage_in_a_range(node: RunningNode, topic: str, background: str) -> None:
    times = [publish(node, topic, f"value {n}", partition=0)[0]["timestamp"] for n in range(3)]
    assert node.node.broker is not None
    partition = node.node.broker.topics[topic].partitions[0]
    path = message_log(partition).active.path
    data = bytearray(path.read_bytes())
    data[data.index(b"value 1")] ^= 1
    path.write_bytes(data)
    query = f"from_time={quote(times[0], safe='')}{background}"
    found = read(node, topic, query)
    assert values(found["messages"]) == ["value 0", "value 2"]
    assert found["damaged"] == [{"partition": 0, "start_offset": 1, "end_offset": 2}]
    assert (found["next"], found["end"]) == (3, 3)
    eventually(lambda: node.on_loop(lambda: [tuple(r)[:2] for r in state_of(partition).corrupt]))
    path = f"/v1/topics/{topic}/messages?partition=0&{query}"
    preface, frames = f.answered(node.request("GET", path, headers=f.ACCEPT_FRAMES).body)
    assert preface["damaged"] == found["damaged"]
    assert [view.header.base_offset for _, view in frames] == [0, 2]


@pytest.mark.parametrize("background", [False, True])
def test_retention_may_delete_what_is_being_read(
    node: RunningNode, topic: str, background: bool
) -> None:
    path = f"/v1/topics/{topic}"
    node.call("PATCH", path, {"settings": {"segment.bytes": "64KiB"}})
    value = "x" * 10_000
    for number in range(60):
        publish(node, topic, f"{number} {value}", partition=0)
    assert node.node.broker is not None
    broker, seen = node.node.broker, []
    with Client(node.url) as client:
        offset = 0
        while True:
            piece = client.read(
                topic,
                partition=0,
                offset=offset,
                from_time="-1h",
                to_time="+1h",
                limit=7,
                background=background,
            )
            seen += [message.offset for message in piece.messages]
            offset = piece.next
            if len(seen) == 7:
                node.call("PATCH", path, {"settings": {"retention.bytes": "128KiB"}})
                node.on_loop(broker.retention_manager.apply)
            if offset >= piece.end:
                break
    assert piece.damaged == []
    assert piece.start > 30
    assert seen == [*range(7), *range(piece.start, 60)]


@pytest.mark.parametrize("query", ["to_time=now", "as_of=now", "from_time=-1h&to_time=2100-01-01"])
def test_a_read_up_to_now_has_what_is_being_stored_since_an_earlier_time(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    with being_stored(node, topic, monkeypatch) as finish, ThreadPoolExecutor(2) as threads:
        assert read(node, topic, "to_time=-1h")["messages"] == []
        reading = threads.submit(read, node, topic, query)
        finish(reading)
        assert values(reading.result(60)["messages"]) == ["x" * SIZE]


def test_a_group_that_is_set_to_an_end_now_gets_what_was_being_stored_before(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/v1/topics/{topic}/groups/g"
    bounds = {"to": "-1h", "end": "now", "partition": 0}
    with being_stored(node, topic, monkeypatch) as finish, ThreadPoolExecutor(2) as threads:
        resetting = threads.submit(node.call, "POST", f"{path}/reset", bounds)
        finish(resetting)
        (moved,) = resetting.result(60)["partitions"]
    assert (moved["to"], moved["end"]) == (0, 1)
    publish(node, topic, "later", partition=0)
    assert values(node.call("POST", f"{path}/receive", {})["messages"]) == ["x" * SIZE]


SIZE = 1 << 20


@contextmanager
def being_stored(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Future[Any]], None]]:
    """Have a message that has its time, and is not on the disk yet.

    Yield what puts it there, once another request waits for it or was answered.
    """
    partition = node.node.broker.topic(topic).partitions[0]
    log, begun, may_end = message_log(partition), threading.Event(), threading.Event()
    write = log.write

    def held(batch: WriteBatch) -> None:
        begun.set()
        assert may_end.wait(60)
        write(batch)

    def finish(other: Future[Any]) -> None:
        eventually(lambda: other.done() or node.on_loop(lambda: has_work_waiting(partition)))
        may_end.set()

    monkeypatch.setattr(log, "write", held)
    with ThreadPoolExecutor(1) as thread:
        publishing = thread.submit(publish, node, topic, "x" * SIZE, partition=0)
        try:
            eventually(lambda: begun.is_set() or publishing.done())
            yield finish
        finally:
            may_end.set()
        publishing.result(60)
