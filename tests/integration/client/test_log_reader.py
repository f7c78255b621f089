from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Sequence

import pytest

from goq.client import AsyncClient, Client, DamagedRange
from goq.client._sync.log.partition_reader import LogRange
from goq.client._sync.log.topic_reader import TopicReader
from goq.errors import CorruptData, InvalidInput, PartitionNotFound
from goq.units import format_time_us
from tests.support.client.fake_node import FakeNode
from tests.support.client.scripted_server import ScriptedServer, ok


def scatter(client: Client, batches: Sequence[Sequence[bytes]], partitions: int = 3) -> None:
    """Publish each batch as a frame to the next partition."""
    for n, batch in enumerate(batches):
        with client.producer("lines", partition=n * 7 % partitions) as producer:
            producer.send_values(batch)


BATCHES = [[b"%d.%d" % (n, i) for i in range(n % 4 + 1)] for n in range(20)]
LINES = [line for batch in BATCHES for line in batch]


def test_all_partitions_are_merged_by_append_time(node: FakeNode, client: Client) -> None:
    node.create("lines", 3)
    scatter(client, BATCHES)
    messages = list(client.read_log("lines"))
    assert [m.value for m in messages] == LINES
    assert [m.timestamp for m in messages] == sorted(m.timestamp for m in messages)


def test_what_one_producer_sent_without_keys_comes_back_in_order(
    node: FakeNode, client: Client
) -> None:
    node.create("lines", 6)
    lines = [b"%d" % n for n in range(5000)]
    with client.producer("lines", batch=100) as producer:
        producer.send_values(lines)
    assert [m.value for m in client.read_log("lines")] == lines


def test_equal_times_are_ordered_by_partition_then_offset(node: FakeNode, client: Client) -> None:
    node.create("lines", 2)
    for partition in (1, 0, 1, 0):
        node.now_us = 1_700_000_000_000_000
        client.publish("lines", b"", partition=partition)
    assert [(m.partition, m.offset) for m in client.read_log("lines")] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


def small_batches(client: Client) -> TopicReader:
    """Read all partitions with batches of three messages in all."""
    return TopicReader(
        client._http,
        "lines",
        None,
        LogRange(),
        follow=False,
        on_damage=None,
        messages_min=1,
        messages_max=3,
    )


def test_small_pieces_make_the_same_whole(node: FakeNode, client: Client) -> None:
    node.create("lines", 3)
    scatter(client, BATCHES)
    assert [m.value for m in small_batches(client).messages()] == LINES
    assert len(node.paths("GET", "limit=1")) > len(LINES) / 2


def test_the_log_is_read_to_its_end_as_it_was(node: FakeNode, client: Client) -> None:
    node.create("lines")
    client.publish_many("lines", [b"a", b"b"])
    seen = []
    for message in client.read_log("lines"):
        seen.append(message.value)
        client.publish("lines", b"more")
    assert seen == [b"a", b"b"]


def test_an_empty_log_is_empty(node: FakeNode, client: Client) -> None:
    node.create("lines", 3)
    assert list(client.read_log("lines")) == []
    assert list(client.read_log("lines", from_time="-1h")) == []


def test_one_partition_from_an_offset(node: FakeNode, client: Client) -> None:
    node.create("lines", 3)
    scatter(client, BATCHES)
    whole = [m for m in client.read_log("lines") if m.partition == 1]
    assert list(client.read_log("lines", partition=1, from_offset=4)) == whole[4:]
    with pytest.raises(PartitionNotFound):
        list(client.read_log("lines", partition=3))


def test_from_one_time_to_another(node: FakeNode, client: Client) -> None:
    node.create("lines", 3)
    scatter(client, BATCHES)
    times = sorted({m.timestamp for m in client.read_log("lines")})
    part = client.read_log(
        "lines", from_time=format_time_us(times[5]), to_time=format_time_us(times[10])
    )
    assert [m.value for m in part] == [line for batch in BATCHES[5:10] for line in batch]


def test_read_gives_a_piece_and_where_to_go_on(node: FakeNode, client: Client) -> None:
    node.create("lines")
    client.publish_many("lines", [b"%d" % n for n in range(10)])
    piece = client.read("lines", partition=0, offset=2, limit=3)
    assert [m.value for m in piece.messages] == [b"2", b"3", b"4"]
    assert (piece.next, piece.start, piece.end, piece.damaged) == (5, 0, 10, [])
    empty = client.read("lines", partition=0, offset=10, wait="1ms")
    assert (empty.messages, empty.next) == ([], 10)
    assert "wait=1ms" in node.requests[-1][1]


def test_damage_is_reported_where_it_is(node: FakeNode, client: Client) -> None:
    [partition] = node.create("lines")
    for n in range(3):
        client.publish_many("lines", [b"%d.%d" % (n, i) for i in range(5)])
    partition.damaged.append((5, 10))
    found: list[DamagedRange] = []
    seen = [m.value for m in client.read_log("lines", on_damage=found.append)]
    assert seen == [b"%d.%d" % (n, i) for n in (0, 2) for i in range(5)]
    assert found == [DamagedRange("lines", 0, 5, 10)]
    got: list[bytes | None] = []
    with pytest.raises(CorruptData, match="messages 5 to 9 of lines, partition 0"):
        got.extend(m.value for m in client.read_log("lines"))
    assert client.read("lines", partition=0).damaged == found


def test_following_yields_what_comes_later_from_every_partition(
    node: FakeNode, client: Client
) -> None:
    node.create("lines", 3)
    scatter(client, BATCHES)
    log = client.read_log("lines", follow=True)
    assert [next(log).value for _ in LINES] == LINES
    for n in range(10):
        client.publish("lines", f"late {n}")
        assert next(log).value == b"late %d" % n
    del log
    gc.collect()


def test_following_asynchronously(node: FakeNode) -> None:
    node.create("lines", 3)

    async def scenario() -> None:
        async with AsyncClient(node.url) as q:
            log = q.read_log("lines", follow=True)
            for n in range(10):
                await q.publish("lines", f"{n}")
                assert (await anext(log)).value == b"%d" % n
            await log.aclose()

    asyncio.run(scenario())


def test_following_reports_damage_and_errors(node: FakeNode, client: Client) -> None:
    [partition] = node.create("lines")
    found: list[DamagedRange] = []
    log = client.read_log("lines", follow=True, on_damage=found.append)
    client.publish("lines", b"good")
    assert next(log).value == b"good"
    partition.damaged.append((1, 2))
    client.publish_many("lines", [b"bad"])
    client.publish("lines", b"good again")
    assert next(log).value == b"good again"
    assert found == [DamagedRange("lines", 0, 1, 2)]


def test_following_has_no_end(client: Client) -> None:
    with pytest.raises(InvalidInput, match="to_time"):
        client.read_log("lines", follow=True, to_time="now")


def test_memory_holds_one_piece_of_a_partition(node: FakeNode, client: Client) -> None:
    node.create("lines", 100)
    log = TopicReader(client._http, "lines", None, LogRange(), follow=False, on_damage=None)
    assert list(log.messages()) == []
    assert log.limit == 100


def test_a_peek_without_a_group_shows_the_oldest(node: FakeNode, client: Client) -> None:
    times = ["2026-01-01T00:00:00.000000Z", "2026-01-02T00:00:00.000000Z"]
    page = {"messages": [{"timestamp": times[1], "partition": 0, "offset": 0, "id": "t:0:0"}]}
    other = {"messages": [{"timestamp": times[0], "partition": 1, "offset": 0, "id": "t:1:0"}] * 3}
    topic = {"partitions": [{"partition": 0}, {"partition": 1}]}
    answers = [ok(json.dumps(answer).encode()) for answer in (topic, page, other)]
    with ScriptedServer([[answer] for answer in answers]) as server, Client(server.url) as q:
        found = q.peek("t", limit=4).messages
    assert [item.partition for item in found] == [1, 1, 1, 0]


def test_a_range_of_times_is_exact_where_the_clock_was_set_back(
    node: FakeNode, client: Client
) -> None:
    node.create("lines", 2)
    start_us = 1_700_000_000_000_000
    for number, step_us in enumerate((0, 9_000, 3_000, 5_000, 1_000, 4_000)):
        node.now_us = start_us + step_us - 1000
        client.publish("lines", f"{number}", partition=number % 2)
    times = {
        "from_time": format_time_us(start_us + 3_000),
        "to_time": format_time_us(start_us + 5_000),
    }
    assert [m.value for m in client.read_log("lines", **times)] == [b"2", b"5"]
    assert [m.value for m in client.read_log("lines", from_time=times["from_time"])] == [
        b"2",
        b"1",
        b"3",
        b"5",
    ]
    assert [m.value for m in client.read_log("lines", from_offset=2, partition=1, **times)] == [
        b"5"
    ]


def test_the_end_that_a_partition_had_bounds_what_is_read_of_it(
    node: FakeNode, client: Client
) -> None:
    node.create("lines")
    client.publish_many("lines", [b"a", b"b"])
    client.publish_many("lines", [b"c", b"d"])
    seen = []
    for message in small_batches(client).messages():
        seen.append(message.value)
        client.publish("lines", b"more")
    assert seen == [b"a", b"b", b"c", b"d"]


def test_following_a_range_shows_what_comes_whatever_its_time(
    node: FakeNode, client: Client
) -> None:
    node.create("lines")
    client.publish("lines", b"old")
    client.publish("lines", b"new")
    log = client.read_log("lines", from_time=format_time_us(node.now_us), follow=True)
    assert next(log).value == b"new"
    node.now_us -= 10_000_000
    client.publish("lines", b"after the clock was set back")
    assert next(log).value == b"after the clock was set back"


def test_a_read_in_the_background_says_so(node: FakeNode, client: Client) -> None:
    node.create("lines")
    client.publish("lines", b"x")
    assert [m.value for m in client.read_log("lines", background=True)] == [b"x"]
    assert len(client.read("lines", partition=0, background=True).messages) == 1
    assert len(node.paths("GET", "background=true")) == 2
    client.read("lines", partition=0)
    assert "background" not in node.requests[-1][1]


@pytest.mark.parametrize("time", ["-9999999d", "+9999999d", "0001-01-01", 10**17])
def test_no_time_is_too_far_away(node: FakeNode, client: Client, time: str | int) -> None:
    node.create("lines")
    client.publish("lines", b"x")
    whole = list(client.read_log("lines", from_time=time)) + list(
        client.read_log("lines", to_time=time)
    )
    assert len(whole) == 1
