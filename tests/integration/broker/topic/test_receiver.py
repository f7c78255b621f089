"""Receives of a topic: at once, cancelled, restarted, and from other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from goq.broker.broker import Broker
from goq.broker.topic import receiver as receiver_module
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.receiver import Receiver
from goq.broker.topic.topic import Topic
from goq.delivery.events.event import Acked, Trimmed
from goq.errors import InvalidInput, ShuttingDown, TopicNotFound
from goq.model import Message
from tests.support.broker.harness import (
    BrokenDisk,
    ack,
    broker_on,
    leased,
    options,
    publish,
    quiet,
    run,
)
from tests.support.eventually import until

GROUP = "g"


class Node:
    def __init__(self, broker: Broker, topic: Topic, disk: BrokenDisk) -> None:
        self.broker, self.topic, self.disk = broker, topic, disk

    @property
    def receiver(self) -> Receiver:
        return self.topic.receiver

    def ask(
        self, group: str = GROUP, count: int = 10
    ) -> asyncio.Task[list[tuple[int, int, bytes]]]:
        """Begin a receive that waits."""

        async def receive() -> list[tuple[int, int, bytes]]:
            asked = options(count, wait_ms=60_000)
            return leased(await self.receiver.receive(group, asked))

        return asyncio.ensure_future(receive())

    async def waiting(self, count: int, group: str = GROUP) -> None:
        await until(lambda: self.receiver.waiters.count(group) == count)

    def wait_until_ready(self, seen: int, wait_ms: int = 60_000) -> asyncio.Task[int]:
        """Wait as another node does for its consumer."""
        return asyncio.ensure_future(self.receiver.wait_until_ready(GROUP, "c", "", seen, wait_ms))


def on_node(
    path: Path,
    test: Callable[[Node], Awaitable[None]],
    *,
    partitions: int = 1,
    ordering: str = "key",
) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(path, disk=disk) as broker:
            settings = {"delivery.ordering": ordering}
            await test(
                Node(broker, await broker.topic_admin.create("t", partitions, settings), disk)
            )

    run(main())


@pytest.mark.parametrize("waits", [True, False])
def test_a_trim_that_frees_a_tenant_is_seen_by_a_receive(tmp_path: Path, *, waits: bool) -> None:
    async def test(node: Node) -> None:
        await node.broker.topic_admin.alter("t", {"tenants.max_in_flight": "1"})
        messages = [Message(value, tenant="a") for value in (b"first", b"second")]
        await node.topic.publisher.publish_messages([RoutedMessage(0, each) for each in messages])
        assert [value for *_, value in await node.ask()] == [b"first"]
        assert await node.receiver.receive(GROUP, options(10)) == []
        asked = [node.ask() for _ in range(waits)]
        await node.waiting(len(asked))
        await node.topic.partitions[0].record([Trimmed(1)])
        asked = asked or [node.ask()]
        assert [value for *_, value in await asked[0]] == [b"second"]

    on_node(tmp_path, test)


def test_a_partition_at_rest_is_looked_at_again_after_each_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node) -> None:
        ready, partition = node.receiver.ready_partitions, node.topic.partitions[0]
        assert ready.lanes(GROUP) == {}
        looks = list[str]()
        monkeypatch.setattr(partition.leases, "next_lane", looks.append)
        ready.lanes(GROUP)
        assert looks == []
        await partition.record([Acked(GROUP, 1, [])])
        ready.lanes(GROUP)
        assert looks == [GROUP]

    on_node(tmp_path, test)


def test_a_receive_at_once_gets_what_is_ready_and_never_waits(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        assert node.receiver.receive_at_once(GROUP, options()) is None
        await publish(node.topic, b"a", b"b")
        handing = node.receiver.receive_at_once(GROUP, options(1))
        assert handing is not None
        assert leased(await handing) == [(0, 1, b"a")]
        handing = node.receiver.receive_at_once(GROUP, options())
        assert handing is not None
        assert leased(await handing) == [(1, 1, b"b")]
        assert node.receiver.receive_at_once(GROUP, options()) is None
        assert node.topic.stats.delivered_messages == 2
        assert node.topic.stats.groups[GROUP].delivered_messages == 2

    on_node(tmp_path, test)


def test_members_of_a_group_receive_nothing_at_once(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await publish(node.topic, b"a")
        assert node.receiver.has_members(GROUP)
        assert node.receiver.receive_at_once(GROUP, options()) is None
        assert leased(await node.receiver.receive(GROUP, options())) == [(0, 1, b"a")]

    on_node(tmp_path, test, ordering="partition")


@pytest.mark.parametrize("at_once", [True, False])
def test_a_receive_that_is_cancelled_before_its_lease_is_stored_costs_no_attempt(
    tmp_path: Path, at_once: bool
) -> None:
    async def test(node: Node) -> None:
        await publish(node.topic, b"a")
        await node.receiver.receive("other", options())
        await quiet(node.topic.partitions[0])
        node.disk.hold("events")
        asked = options(wait_ms=60_000)
        if at_once:
            handing = node.receiver.receive_at_once(GROUP, asked)
            assert handing is not None
            task = asyncio.ensure_future(handing)
        else:
            task = asyncio.ensure_future(node.receiver.receive(GROUP, asked))
        await until(node.disk.holding.is_set)
        next_one = node.ask()
        await node.waiting(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        node.disk.release()
        assert await next_one == [(0, 1, b"a")]
        assert node.topic.stats.groups[GROUP].delivered_messages == 1

    on_node(tmp_path, test)


def test_a_woken_receive_that_leaves_messages_wakes_the_next(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        receives = [node.ask(count=1) for _ in range(3)]
        await node.waiting(3)
        await publish(node.topic, b"a", b"b", b"c")
        values = [value for receive in receives for _, _, value in await receive]
        assert sorted(values) == [b"a", b"b", b"c"]

    on_node(tmp_path, test)


def test_each_group_is_woken_by_a_message(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        groups = [f"g{number}" for number in range(8)]
        receives = [node.ask(group) for group in groups]
        for group in groups:
            await node.waiting(1, group)
        assert node.receiver.is_awaited()
        await publish(node.topic, b"a")
        for receive in receives:
            assert await receive == [(0, 1, b"a")]
        assert not node.receiver.is_awaited()

    on_node(tmp_path, test)


def test_the_count_of_what_became_ready_grows_with_each_reason(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        counts = [node.receiver.ready_count(GROUP)]

        def has_grown() -> bool:
            counts.append(node.receiver.ready_count(GROUP))
            return counts[-1] > counts[-2]

        await publish(node.topic, b"a")
        assert has_grown()
        for change in (
            node.receiver.wake,
            node.receiver.on_offline,
            lambda: node.receiver.on_ready(0, GROUP),
            lambda: node.receiver.restart(GROUP),
            lambda: node.receiver.wake_consumers(GROUP, ["c"]),
        ):
            change()
            assert has_grown()
        before = node.receiver.ready_count("other")
        node.receiver.on_ready(0, "other")
        node.receiver.restart("other")
        assert not has_grown()
        assert node.receiver.ready_count("other") == before + 2

    on_node(tmp_path, test)


def test_who_waits_for_another_node_is_told_of_the_next_message(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        seen = node.receiver.ready_count(GROUP)
        assert await node.wait_until_ready(seen - 1) == seen
        assert await node.wait_until_ready(seen, 1) == seen
        waiting = node.wait_until_ready(seen)
        await node.waiting(1)
        await publish(node.topic, b"a")
        assert await waiting > seen

    on_node(tmp_path, test)


def test_a_wake_up_of_another_node_passes_to_the_next_waiter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "_PASS_ON_S", 0.01)

    async def test(node: Node) -> None:
        first = node.wait_until_ready(node.receiver.ready_count(GROUP))
        await node.waiting(1)
        own = node.ask()
        await node.waiting(2)
        await publish(node.topic, b"a")
        await first  # its consumer is gone
        assert await own == [(0, 1, b"a")]

    on_node(tmp_path, test)


def test_all_who_wait_are_told_when_the_topic_is_deleted(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        own, other = node.ask(), node.wait_until_ready(node.receiver.ready_count(GROUP))
        await node.waiting(2)
        await node.broker.topic_admin.delete("t")
        for each in (own, other):
            with pytest.raises((TopicNotFound, ShuttingDown)):
                await each
        with pytest.raises(TopicNotFound):
            await node.wait_until_ready(node.receiver.ready_count(GROUP), 1)

    on_node(tmp_path, test)


def test_a_receive_follows_the_ordering_of_its_group(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        waiting = node.ask()
        await node.waiting(1)
        await node.broker.group_admin.configure(node.topic, GROUP, {"ordering": "partition"})
        await until(lambda: node.receiver.waiters.count(f"{GROUP}/c") == 1)
        await publish(node.topic, b"a")
        assert await waiting == [(0, 1, b"a")]

    on_node(tmp_path, test)


def test_a_consumer_without_a_name_is_no_member(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        with pytest.raises(InvalidInput):
            await node.receiver.receive(GROUP, replace(options(), consumer=""))

    on_node(tmp_path, test, ordering="partition")


def test_messages_of_all_partitions_come_in_turn(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        for number in range(3):
            await publish(node.topic, b"%d" % number, b"%d" % number, partition=number)
        first = [leased(await node.receiver.receive(GROUP, options(1)))[0][2] for _ in range(3)]
        assert sorted(first) == [b"0", b"1", b"2"]
        batches = await node.receiver.receive(GROUP, options(10))
        assert len(leased(batches)) == 3
        assert await ack(node.topic, GROUP, batches) == 3

    on_node(tmp_path, test, partitions=3)


def test_a_stuck_key_with_more_bytes_than_a_receive_has_does_not_stop_others(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        async def keyed(key: bytes, value: bytes) -> None:
            message = RoutedMessage(0, Message(value, key))
            await node.topic.publisher.publish_messages([message])

        await keyed(b"stuck", b"first")
        assert len(leased(await node.receiver.receive(GROUP, options(1)))) == 1
        for _ in range(9):
            await keyed(b"stuck", bytes(2_000))
        await keyed(b"free", b"other")
        asked = options(10, bytes_max=4_000)
        assert leased(await node.receiver.receive(GROUP, asked)) == [(10, 1, b"other")]
        assert await node.receiver.receive(GROUP, asked) == []

    on_node(tmp_path, test)


def test_who_waits_gets_what_a_reset_gives_back_and_no_more_than_it_ends_with(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        await publish(node.topic, b"a", b"b", b"c")
        await ack(node.topic, GROUP, await node.receiver.receive(GROUP, options(10)))
        asking = node.ask()
        await node.waiting(1)
        await node.topic.partitions[0].reset(GROUP, 1, 2)
        assert [value for _, _, value in await asking] == [b"b"]
        asking = node.ask()
        await node.waiting(1)
        await node.topic.partitions[0].reset(GROUP, 2)
        assert [value for _, _, value in await asking] == [b"c"]

    on_node(tmp_path, test)
