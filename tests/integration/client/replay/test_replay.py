from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from goq import limits
from goq.client import AsyncClient, Client, ReadBatch
from goq.client._sync.log.partition_reader import LogRange
from goq.client._sync.log.topic_copy import OVERTAKEN_MAX, TopicCopy
from goq.client.replay_plan import REPLAYED_FROM, Replay
from goq.errors import (
    Conflict,
    InvalidInput,
    OutOfOrderSequence,
    PartitionNotFound,
    TooLarge,
    TopicNotFound,
)
from goq.model import Message
from tests.support.node.running_node import RunningNode, running_node

_numbers = iter(range(1_000_000))


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with running_node() as node:
        yield node


@pytest.fixture
def client(node: RunningNode) -> Iterator[Client]:
    with Client(node.url) as client:
        yield client


@pytest.fixture
def source(client: Client) -> str:
    """A topic of three partitions with 400 messages of 20 keys and without, in many frames."""
    name = f"source-{next(_numbers)}"
    client.create_topic(name, partitions=3)
    for batch in range(20):
        client.publish_many(
            name,
            [
                Message(b"%d-%d" % (batch, n), b"k%d" % n if n % 4 else None, (("n", b"1"),))
                for n in range(20)
            ],
        )
    return name


def new_topic(client: Client, partitions: int = 3, **settings: Any) -> str:
    name = f"target-{next(_numbers)}"
    client.create_topic(name, partitions=partitions, settings=settings or None)
    return name


def origins(client: Client, topic: str) -> list[list[str]]:
    """Return by partition which messages those of a topic are copies of."""
    count = len(client.describe_topic(topic).partitions)
    found: list[list[str]] = [[] for _ in range(count)]
    for message in client.read_log(topic):
        found[message.partition].append(dict(message.headers)[REPLAYED_FROM].decode())
    return found


def ids(client: Client, topic: str, **bounds: Any) -> list[str]:
    return [str(message.id) for message in client.read_log(topic, **bounds)]


def roll(node: RunningNode, topic: str) -> None:
    """Seal what partition 0 has."""
    node.on_loop(lambda: node.node.broker.topic(topic).partitions[0].trimmer.roll())


def trim(node: RunningNode, topic: str, offset: int) -> None:
    """Delete what partition 0 has before an offset, as retention does."""
    node.on_loop(lambda: node.node.broker.topic(topic).partitions[0].trimmer.trim(offset))


def flat(found: list[list[str]]) -> list[str]:
    return sorted(origin for partition in found for origin in partition)


def test_every_message_is_copied_once_with_all_that_it_says(client: Client, source: str) -> None:
    target = new_topic(client)
    client.publish(source, "x", key="a", tenant="acme", priority="high", headers={"h": "1"})
    client.publish(source, None, key="gone")
    replay = client.replay(source, from_offset=0)
    copied = client.replay_into(replay, target)
    assert (copied.stored, copied.known) == (402, 0)
    before = {str(m.id): m for m in client.read_log(source)}
    for message in client.read_log(target):
        original = before.pop(dict(message.headers)[REPLAYED_FROM].decode())
        assert (message.partition, message.key, message.value) == (
            original.partition,
            original.key,
            original.value,
        )
        assert (message.tenant, message.priority) == (original.tenant, original.priority)
        assert message.headers[:-1] == original.headers
    assert not before
    assert all(
        offsets == sorted(offsets, key=lambda origin: int(origin.rpartition(":")[2]))
        for offsets in origins(client, target)
    )


def test_run_again_it_stores_nothing(client: Client, source: str) -> None:
    target = new_topic(client)
    replay = client.replay(source, from_offset=0)
    client.replay_into(replay, target)
    again = client.replay_into(replay, target)
    assert (again.stored, again.known) == (0, 400)
    assert len(flat(origins(client, target))) == 400


class Crash(Exception):
    pass


@pytest.mark.parametrize("partitions", [1, 2, 3, 5])
def test_cut_short_anywhere_and_run_again_it_is_as_one_run(
    client: Client, source: str, partitions: int
) -> None:
    whole, target = new_topic(client, partitions), new_topic(client, partitions)
    replay = client.replay(source, from_offset=0)
    client.replay_into(replay, whole)
    rng = random.Random(partitions)
    stored = 0

    def crash(_count: int) -> None:
        if rng.random() < 0.3:
            raise Crash

    for _ in range(200):
        before = rng.random() < 0.5
        hooks = {"before_send" if before else "on_stored": crash}
        try:
            copied = client.replay_into(replay, target, batch=rng.randint(1, 40), **hooks)
        except Crash:
            continue
        assert copied.stored + copied.known == 400
        stored = copied.stored
        break
    assert stored < 400
    copies, wanted = origins(client, target), origins(client, whole)
    assert [sorted(each) for each in copies] == [sorted(each) for each in wanted]
    assert _in_order(copies) == _in_order(wanted)
    if partitions == 3:
        assert copies == wanted


def _in_order(copies: list[list[str]]) -> dict[tuple[int, str], list[str]]:
    """Return by target and source partition the copies as they follow each other."""
    found: dict[tuple[int, str], list[str]] = {}
    for number, partition in enumerate(copies):
        for origin in partition:
            found.setdefault((number, origin.rpartition(":")[0]), []).append(origin)
    return found


def create_again(client: Client, topic: str, messages: int) -> None:
    client.delete_topic(topic)
    client.create_topic(topic, partitions=3)
    client.publish_many(topic, [Message(b"anew-%d" % n, b"k%d" % n) for n in range(messages)])


@pytest.mark.parametrize("begun", [False, True])
def test_a_replay_of_a_source_that_was_created_again_is_refused(
    client: Client, source: str, begun: bool
) -> None:
    target = new_topic(client)
    replay = client.replay(source, from_offset=0)
    if begun:
        client.replay_into(replay, target)
    create_again(client, source, 800)
    with pytest.raises(Conflict, match=f"{source} was deleted and created again"):
        client.replay_into(replay, target)
    copies = len(list(client.read_log(target)))
    assert copies == 400 * begun
    client.replay_into(client.replay(source, from_offset=0), target)
    values = [message.value for message in client.read_log(target)]
    assert len(values) == copies + 800
    assert sum((value or b"").startswith(b"anew-") for value in values) == 800


def test_a_replay_whose_source_is_created_again_meanwhile_is_refused_in_the_end(
    client: Client, source: str
) -> None:
    rounds = iter([lambda: create_again(client, source, 10)])

    def before_send(_count: int) -> None:
        next(rounds, lambda: None)()

    replay, target = client.replay(source, from_offset=0), new_topic(client)
    with pytest.raises(Conflict, match=f"{source} was deleted and created again"):
        client.replay_into(replay, target, batch=50, before_send=before_send)


@pytest.mark.parametrize("messages", [10, 800])
def test_a_replay_that_is_read_while_its_topic_is_created_again_is_refused(
    client: Client, source: str, messages: int
) -> None:
    found = client.read_replay(client.replay(source, from_offset=0, to_offset=10_000))
    next(found)
    create_again(client, source, messages)
    with pytest.raises(Conflict, match=f"{source} was deleted and created again"):
        list(found)
    late = client.replay(source, from_offset=0)
    create_again(client, source, messages)
    with pytest.raises(Conflict, match=f"{source} was deleted and created again"):
        list(client.read_replay(late))


def test_a_target_that_is_created_again_meanwhile_gets_each_copy_once_in_its_place(
    client: Client, source: str
) -> None:
    target = new_topic(client, 1)
    requests = itertools.count(1)

    def before_send(_count: int) -> None:
        if next(requests) == 3:
            client.delete_topic(target)
            client.create_topic(target, partitions=2)

    replay = client.replay(source, from_offset=0)
    done = client.replay_into(replay, target, batch=50, before_send=before_send)
    assert done == (400, 0)
    copies = list(client.read_log(target))
    copied = flat(origins(client, target))
    assert copied == sorted(ids(client, source))
    places = {(copy.key, copy.partition) for copy in copies if copy.key is not None}
    assert len(places) == len({key for key, _ in places})
    assert {copy.partition for copy in copies} == {0, 1}
    assert client.replay_into(replay, target) == (0, 400)


def test_a_target_that_was_created_again_gets_everything(client: Client, source: str) -> None:
    target = new_topic(client)
    replay = client.replay(source, from_offset=0)
    client.replay_into(replay, target)
    client.delete_topic(target)
    client.create_topic(target, partitions=3)
    client.replay_into(replay, target)
    assert len(list(client.read_log(target))) == 400


def test_two_of_the_same_at_once_double_nothing(node: RunningNode, source: str) -> None:
    with Client(node.url) as client:
        target = new_topic(client, 2)
        replay = client.replay(source, from_offset=0)
    results: list[Any] = []

    def run(batch: int) -> None:
        with Client(node.url) as mine:
            results.append(mine.replay_into(replay, target, batch=batch))

    threads = [threading.Thread(target=run, args=(batch,)) for batch in (7, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 3
    with Client(node.url) as client:
        assert flat(origins(client, target)) == sorted(ids(client, source))
    assert {result.stored + result.known for result in results} == {400}


def test_what_retention_takes_from_the_source_meanwhile_shifts_nothing(
    node: RunningNode, client: Client
) -> None:
    source, target = new_topic(client, 1), new_topic(client, 1)
    for n in range(15):
        client.publish(source, f"{n}")
    roll(node, source)
    client.publish_many(source, [f"{n}" for n in range(15, 30)])
    replay = client.replay(source, from_offset=0)

    def crash(_count: int) -> None:
        raise Crash

    with pytest.raises(Crash):
        client.replay_into(replay, target, batch=10, on_stored=crash)

    trim(node, source, 15)
    client.replay_into(replay, target, batch=10)
    assert origins(client, target) == [[f"{source}:0:{n}" for n in (*range(10), *range(15, 30))]]


def test_two_of_the_same_at_once_double_nothing_though_one_came_after_retention(
    node: RunningNode, client: Client
) -> None:
    source, target = new_topic(client, 1), new_topic(client, 1)
    for n in range(15):
        client.publish(source, f"{n}")
    roll(node, source)
    client.publish_many(source, [f"{n}" for n in range(15, 60)])
    replay = client.replay(source, from_offset=0)
    requests = itertools.count(1)

    def crash(_count: int) -> None:
        raise Crash

    def overtake(_count: int) -> None:
        if next(requests) == 2:  # this run has read what retention takes now
            trim(node, source, 15)
            with pytest.raises(Crash):
                client.replay_into(replay, target, batch=10, on_stored=crash)

    client.replay_into(replay, target, batch=10, before_send=overtake)
    assert origins(client, target) == [[f"{source}:0:{n}" for n in (*range(10), *range(15, 60))]]


def test_when_retention_took_the_last_copy_it_is_not_guessed_how_far_it_got(
    node: RunningNode, client: Client
) -> None:
    source, target = new_topic(client, 1), new_topic(client, 1)
    for n in range(5):
        client.publish(source, f"{n}")
    replay = client.replay(source, from_offset=0)
    client.replay_into(replay, target)
    roll(node, target)
    trim(node, target, 5)
    with pytest.raises(Conflict, match="--from-offset"):
        client.replay_into(replay, target)


def test_a_copy_of_a_copy_names_its_first_original_and_the_one_it_was_made_of(
    client: Client,
) -> None:
    topics = [new_topic(client, 1) for _ in range(4)]
    client.publish(topics[0], "x")
    for before, after in itertools.pairwise(topics):
        client.replay_into(client.replay(before, from_offset=0), after)
    (message,) = client.read_log(topics[3])
    assert message.headers == (
        (REPLAYED_FROM, f"{topics[0]}:0:0".encode()),
        (REPLAYED_FROM, f"{topics[2]}:0:0".encode()),
    )


def test_only_one_key_one_partition_or_some_offsets_are_copied(client: Client, source: str) -> None:
    for bounds, wanted in (
        ({"key": "k7", "from_offset": 0}, lambda m: m.key == b"k7"),
        ({"partition": 1, "from_offset": 10}, lambda m: m.partition == 1 and m.offset >= 10),
        ({"from_offset": 5, "to_offset": 17}, lambda m: 5 <= m.offset < 17),
    ):
        target = new_topic(client)
        replay = client.replay(source, **bounds)
        client.replay_into(replay, target)
        expected = sorted(str(m.id) for m in client.read_log(source) if wanted(m))
        assert expected
        assert flat(origins(client, target)) == expected
        assert [str(m.id) for m in client.read_replay(replay)] == [
            str(m.id) for m in client.read_log(source) if wanted(m)
        ]


def test_times_are_exact_at_both_ends(client: Client, source: str) -> None:
    times = sorted({m.timestamp for m in client.read_log(source)})
    start, end = times[3], times[11]
    replay = client.replay(source, from_time=start / 1000, to_time=end / 1000)
    assert (replay.from_time_us, replay.to_time_us) == (start, end)
    found = [m.timestamp for m in client.read_replay(replay)]
    assert found == [t for t in [m.timestamp for m in client.read_log(source)] if start <= t < end]
    empty = client.replay(source, from_time=start / 1000, to_time=start / 1000)
    assert list(client.read_replay(empty)) == []
    assert client.replay_into(empty, new_topic(client)) == (0, 0)
    to_come = client.replay(source, from_time="+1h")
    assert list(client.read_replay(to_come)) == []
    for offsets in ({"from_offset": 10**15}, {"from_offset": 0, "to_offset": 0}):
        assert list(client.read_replay(client.replay(source, **offsets))) == []


def test_an_end_that_is_open_or_to_come_is_now(client: Client, source: str) -> None:
    open_end = client.replay(source, from_time="-1h")
    to_come = client.replay(source, from_time="-1h", to_time="+1h")
    client.publish(source, "later")
    assert len(list(client.read_replay(open_end))) == 400
    assert len(list(client.read_replay(to_come))) == 400
    by_offset = client.replay(source, from_offset=0, to_offset=10)
    wanted = Replay(source, from_offset=0, to_offset=10, topic_id=by_offset.topic_id)
    assert by_offset == wanted  # needs no time: it has an end


def test_another_replay_has_other_producers(source: str) -> None:
    replay = Replay(source, from_time_us=1, to_time_us=1000)
    others = [
        replace(replay, to_time_us=1001),
        replace(replay, from_time_us=2),
        replace(replay, from_time_us=None, from_offset=1),
        replace(replay, from_time_us=None),
        replace(replay, to_time_us=None),
        replace(replay, to_offset=1),
        replace(replay, key=b"k"),
        replace(replay, key=b""),
        replace(replay, partition=0),
        replace(replay, include_deleted=True),
        replace(replay, as_of_us=7),
        replace(replay, topic="other"),
        replace(replay, topic_id="7"),
    ]
    known = {each.producer_id("t", 0) for each in (replay, *others)}
    known |= {replay.producer_id("t", 1), replay.producer_id("u", 0)}
    assert len(known) == len(others) + 3
    assert all(0 < producer_id < 2**63 for producer_id in known)
    same = Replay(source, from_time_us=1, to_time_us=1000)
    assert same.producer_id("t", 0) == replay.producer_id("t", 0)


def test_a_producer_id_never_changes_or_what_was_cut_short_would_be_doubled() -> None:
    replay = Replay("orders", 1_700_000_000_000_000, 1_700_000_100_000_000, key=b"k")
    assert replay.producer_id("copy", 2) == 2085274209450227816


def test_a_lane_that_the_target_does_not_name_is_that_of_its_number(client: Client) -> None:
    source = new_topic(client, 1, **{"priority.lanes": "now,high,late"})
    target = new_topic(client, 1, **{"priority.lanes": "high,low,last"})
    for priority in ("now", "high", "late"):
        client.publish(source, priority, priority=priority)
    client.replay_into(client.replay(source, from_offset=0), target)
    lanes = {m.value: m.priority for m in client.read_log(target)}
    assert lanes == {b"now": "high", b"high": "high", b"late": "last"}


def test_what_was_delayed_or_would_expire_is_ready_at_once_and_for_ever(client: Client) -> None:
    source, target = new_topic(client, 1), new_topic(client, 1)
    client.publish(source, "later", delay="1h", ttl="2h")
    client.replay_into(client.replay(source, from_offset=0), target)
    (message,) = client.read_log(target)
    assert (message.deliver_at, message.expires_at) == (None, None)
    assert [m.value for m in client.receive(target, "g")] == [b"later"]


def test_a_topic_is_not_replayed_into_itself(client: Client, source: str) -> None:
    with pytest.raises(InvalidInput) as failure:
        client.replay_into(client.replay(source, from_offset=0), source)
    assert failure.value.field == "into"
    assert len(ids(client, source)) == 400


def test_a_source_that_is_not_there_is_not_found_and_makes_no_target(client: Client) -> None:
    with pytest.raises(TopicNotFound):
        client.replay("missing", from_offset=0)
    with pytest.raises(TopicNotFound):
        client.replay_into(Replay("missing"), "would-be-made")
    with pytest.raises(TopicNotFound):
        client.describe_topic("would-be-made")


def test_a_partition_that_is_not_there_is_not_found(client: Client, source: str) -> None:
    replay = client.replay(source, from_offset=0, partition=9)
    with pytest.raises(PartitionNotFound):
        list(client.read_replay(replay))


def test_bounds_the_wrong_way_round_are_refused(client: Client, source: str) -> None:
    with pytest.raises(InvalidInput, match="before"):
        client.replay(source, from_time="-1h", to_time="-2h")
    with pytest.raises(InvalidInput, match="before"):
        client.replay(source, from_offset=3, to_offset=2)


def test_a_message_without_room_for_one_more_header_is_named(client: Client) -> None:
    source, target = new_topic(client, 1), new_topic(client, 1)
    client.publish(
        source, "x", headers=[(f"h{n}", b"") for n in range(limits.HEADERS_PER_MESSAGE_MAX)]
    )
    with pytest.raises(TooLarge) as failure:
        client.replay_into(client.replay(source, from_offset=0), target)
    assert f"{source}:0:0" in str(failure.value.field)


def test_a_target_that_got_more_partitions_meanwhile_is_refused(
    client: Client, source: str
) -> None:
    target = new_topic(client, 2)
    replay = client.replay(source, from_offset=0)
    client.replay_into(replay, target)
    client.alter_topic(target, partitions=5)
    with pytest.raises(Conflict, match="partitions"):
        client.replay_into(replay, target)


def test_the_asynchronous_client_does_the_same(node: RunningNode, source: str) -> None:
    async def main() -> None:
        async with AsyncClient(node.url) as client:
            await client.create_topic(f"{source}-async", partitions=2)
            replay = await client.replay(source, from_offset=0)
            told: list[int] = []

            async def pace(count: int) -> None:
                told.append(count)

            copied = await client.replay_into(replay, f"{source}-async", batch=50, before_send=pace)
            assert (copied.stored, copied.known) == (400, 0)
            assert told == [50] * 8
            assert len([m async for m in client.read_replay(replay)]) == 400

    asyncio.run(main())


def test_a_target_that_the_node_does_not_make_is_not_found(tmp_path: Path) -> None:
    with (
        running_node(tmp_path / "data", broker={"auto_create_topics": False}) as node,
        Client(node.url) as client,
    ):
        client.create_topic("source", partitions=1)
        client.publish("source", "x")
        replay = client.replay("source", from_offset=0)
        with pytest.raises(TopicNotFound):
            client.replay_into(replay, "target")
        client.create_topic("target", partitions=1)
        assert client.replay_into(replay, "target") == (1, 0)


def test_what_is_to_be_read_besides_is_told_to_the_node(
    client: Client, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[LogRange] = []

    def read(
        _http: object, _topic: str, _partition: int, span: LogRange, **_more: int
    ) -> ReadBatch:
        asked.append(span)
        return ReadBatch(source, 0, frames=[], bounds=(0, 0, 0), damaged=[])

    monkeypatch.setattr("goq.client._sync.log.partition_reader.read", read)
    replay = client.replay(
        source, from_time="-1h", include_deleted=True, as_of="2025-01-15", partition=0
    )
    assert list(client.read_replay(replay)) == []
    (span,) = asked
    assert (span.include_deleted, span.background) == (True, True)
    assert span.as_of == "2025-01-15T00:00:00.000000Z"
    assert span.from_offset is None


def test_a_replay_that_others_overtake_without_end_gives_up(
    client: Client, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[None] = []

    def overtaken(_copying: TopicCopy) -> None:
        tries.append(None)
        raise OutOfOrderSequence("the node goes on with another number")

    monkeypatch.setattr(TopicCopy, "_copy", overtaken)
    with pytest.raises(OutOfOrderSequence):
        client.replay_into(client.replay(source, from_offset=0), new_topic(client))
    assert len(tries) == OVERTAKEN_MAX + 1
