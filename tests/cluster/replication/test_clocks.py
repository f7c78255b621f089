"""Leases and retries of a leader whose clock is an hour off, under the next leader."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from goq.broker.topic.topic_leases import ReceiveRequest
from goq.config.topic import TopicSettings
from goq.errors import GoqError
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from goq.model import Receipt
from tests.support.broker.harness import leased
from tests.support.broker.partition_internals import state_of
from tests.support.cluster.replication.node import SimNode
from tests.support.cluster.replication.world import GROUP, KEY, NAMES, World

HOUR_MS = 3_600_000
LEASE_MS = 5_000
SETTINGS = replace(TopicSettings(), backoff_initial_ms=0, backoff_max_ms=0)


class ClockWorld(World):
    """A world in which nodes keep the clocks that they have, also through a restart."""

    def __init__(self, seed: int, settings: TopicSettings = SETTINGS) -> None:
        super().__init__(seed, settings)
        self.ahead_ms = dict.fromkeys(NAMES, 0)

    def start(self, name: str) -> None:
        super().start(name)
        self.nodes[name].clock.advance_ms(self.ahead_ms[name])

    def set_ahead(self, name: str, ahead_ms: int) -> None:
        self.nodes[name].clock.advance_ms(ahead_ms - self.ahead_ms[name])
        self.ahead_ms[name] = ahead_ms

    async def serving(self) -> SimNode:
        """Return the leader once it serves clients."""
        await self.until(self._is_serving)
        node = self.leader()
        assert node is not None
        return node

    def _is_serving(self) -> bool:
        node = self.leader()
        try:
            return node is not None and node.partition(KEY).is_online
        except GoqError:
            return False

    async def form(self) -> SimNode:
        """Start all nodes; return the leader of a partition that all replicate."""
        for name in NAMES:
            self.start(name)
        return await self.form_started()

    async def form_started(self) -> SimNode:
        """Return the leader of a partition that all replicate."""
        await self.until(self.is_in_sync)
        return await self.serving()

    async def publish(self) -> None:
        node = await self.serving()
        await node.partition(KEY).appender.publish(FrameView.parse(encode_frame(Columns([b"m"]))))

    async def receive(self, consumer: str, visibility_ms: int = LEASE_MS) -> list[Receipt]:
        """Return the receipts of what is ready now."""
        request = ReceiveRequest(consumer, 5, 2**20, 0, visibility_ms)
        try:
            node = await self.serving()
            topic = node.topics[KEY.topic]
            batches = await node.ask(topic.receiver.receive(GROUP, request))
        except GoqError:
            return []
        assert leased(batches) or not batches
        return [Receipt(b.partition, b.token, s, e) for b in batches for s, e, _ in b.spans]

    async def received_at(self, consumer: str) -> float:
        """Return when the message comes again."""
        until = self.loop.time() + 90
        while not await self.receive(consumer):
            assert self.loop.time() < until, "the message does not come again"
            await asyncio.sleep(0.05)
        return self.loop.time()

    async def move(self, how: str) -> SimNode:
        """Let another node lead; return it when it serves."""
        before = self.leader()
        assert before is not None
        if how == "crash":
            before.crash(power=False)
            self.agreement.leave(before.name)
        else:
            self.agreement.depose(KEY)
        after = await self.serving()
        assert after is not before
        return after


@pytest.mark.parametrize("how", ["crash", "depose"])
@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS])
@pytest.mark.parametrize("is_leader_off", [True, False])
def test_a_lease_lasts_as_long_under_a_leader_with_another_clock(
    how: str, ahead_ms: int, is_leader_off: bool
) -> None:
    world = ClockWorld(7)

    async def live() -> None:
        first = await world.form()
        for name in NAMES:
            if (name == first.name) == is_leader_off:
                world.set_ahead(name, ahead_ms)
        await asyncio.sleep(2)  # followers fetch, and see the clock
        await world.publish()
        assert await world.receive("c1")
        began = world.loop.time()
        await asyncio.sleep(2)
        await world.move(how)
        assert await world.received_at("c2") - began == pytest.approx(LEASE_MS / 1000, abs=0.5)

    world.run(live())


@pytest.mark.parametrize("step_ms", [-HOUR_MS, -3_000, 3_000, HOUR_MS])
def test_a_lease_lasts_as_long_though_the_clock_of_the_next_leader_is_set_before_it_leads(
    step_ms: int,
) -> None:
    world = ClockWorld(7)

    async def live() -> None:
        first = await world.form()
        await world.publish()
        assert await world.receive("c1")
        began = world.loop.time()
        await asyncio.sleep(1)
        for name in NAMES:
            if name != first.name:
                world.nodes[name].clock.jump_ms(step_ms)
        await world.move("crash")
        assert await world.received_at("c2") - began == pytest.approx(LEASE_MS / 1000, abs=0.5)

    world.run(live())


@pytest.mark.parametrize("step_ms", [-3_000, 3_000])
def test_a_lease_lasts_as_long_though_its_leader_stores_messages_by_a_clock_that_was_just_set(
    step_ms: int,
) -> None:
    world = ClockWorld(7)

    async def live() -> None:
        first = await world.form()
        await world.publish()
        assert await world.receive("c1")
        began = world.loop.time()
        await asyncio.sleep(1)
        first.clock.jump_ms(step_ms)
        await world.publish()
        await world.move("crash")
        assert await world.receive("c2", visibility_ms=60_000)  # the second message
        assert await world.received_at("c2") - began == pytest.approx(LEASE_MS / 1000, abs=0.5)

    world.run(live())


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS])
def test_the_holder_of_a_lease_can_settle_it_under_a_leader_with_another_clock(
    ahead_ms: int,
) -> None:
    world = ClockWorld(7)

    async def live() -> None:
        first = await world.form()
        world.set_ahead(first.name, ahead_ms)
        await asyncio.sleep(2)
        await world.publish()
        receipts = await world.receive("c1")
        await asyncio.sleep(2)
        after = await world.move("crash")
        await asyncio.sleep(2)
        _, lost = await after.ask(after.topics["t"].settler.acknowledge(GROUP, receipts))
        assert not lost

    world.run(live())


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS])
def test_a_retry_comes_after_its_delay_under_a_leader_with_another_clock(ahead_ms: int) -> None:
    world = ClockWorld(7)

    async def live() -> None:
        first = await world.form()
        world.set_ahead(first.name, ahead_ms)
        await asyncio.sleep(2)
        await world.publish()
        receipts = await world.receive("c1")
        await first.ask(first.topics["t"].settler.nack(GROUP, receipts, LEASE_MS, ""))
        began = world.loop.time()
        await asyncio.sleep(1)
        await world.move("crash")
        assert await world.received_at("c2") - began == pytest.approx(LEASE_MS / 1000, abs=0.5)

    world.run(live())


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS])
def test_a_lease_survives_several_leaders_with_clocks_of_their_own(ahead_ms: int) -> None:
    world = ClockWorld(7)

    async def live() -> None:
        await world.form()
        for number, name in enumerate(NAMES):
            world.set_ahead(name, number * ahead_ms)
        await asyncio.sleep(2)
        await world.publish()
        assert await world.receive("c1", 20_000)
        began = world.loop.time()
        for _ in range(5):
            await asyncio.sleep(2)
            await world.move("depose")
        assert await world.received_at("c2") - began == pytest.approx(20, abs=1)

    world.run(live())


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS])
def test_a_lease_is_kept_whole_when_nobody_knows_the_clock_that_it_is_by(ahead_ms: int) -> None:
    world = ClockWorld(7)

    async def live() -> None:
        first = await world.form()
        world.set_ahead(first.name, ahead_ms)
        await asyncio.sleep(2)
        await world.publish()
        assert await world.receive("c1")
        began = world.loop.time()
        await asyncio.sleep(2)
        for node in world.nodes.values():
            node.crash(power=True)
        for name in NAMES:
            if name != first.name:
                world.start(name)
        world.agreement.leave(first.name)
        after = await world.serving()
        opened = world.loop.time()
        assert after.name != first.name
        again = await world.received_at("c2")
        assert again - began >= LEASE_MS / 1000 - 0.2
        assert again - opened <= LEASE_MS / 1000 + 0.2

    world.run(live())


def test_a_lease_ends_in_its_time_when_the_same_node_leads_again() -> None:
    world = ClockWorld(7)

    async def live() -> None:
        first = await world.form()
        await world.publish()
        assert await world.receive("c1", 60_000)
        began = world.loop.time()
        await asyncio.sleep(10)
        for name in NAMES:
            if name != first.name:
                world.agreement.leave(name)
        first.crash(power=False)
        world.agreement.leave(first.name)
        await asyncio.sleep(20)
        world.start(first.name)
        for name in NAMES:
            if name != first.name:
                world.agreement.join(name, world.nodes[name]._agree)
        assert (await world.serving()).name == first.name
        assert await world.received_at("c2") - began == pytest.approx(60, abs=0.5)

    world.run(live())


def test_no_clock_is_recorded_while_a_node_does_not_know_the_event() -> None:
    world = ClockWorld(7)

    async def live() -> None:
        for name in NAMES:
            world.start(name)
            world.nodes[name].replicas.may_record_clocks = lambda: False
        node = await world.form_started()
        world.set_ahead(node.name, HOUR_MS)
        await world.publish()
        assert await world.receive("c1")
        after = await world.move("depose")
        assert state_of(after.partition(KEY)).clock_node == ""

    world.run(live())


def test_a_lease_keeps_its_time_though_a_node_led_for_a_moment_that_wrote_nothing() -> None:
    world = ClockWorld(7)

    async def live() -> None:
        for name in NAMES:
            world.start(name)
            world.nodes[name].replicas.may_record_clocks = lambda: False
        first = await world.form_started()
        await world.publish()
        assert await world.receive("c1")
        began = world.loop.time()
        for name in NAMES:
            world.nodes[name].replicas.may_record_clocks = lambda: True
        world.agreement.unfit.add(first.name)
        world.agreement.depose(KEY)
        second = world.agreement.parts[KEY].leader
        assert second is not None
        (third,) = set(NAMES) - {first.name, second}
        world.set_ahead(second, HOUR_MS)
        clock = world.nodes[second].clock.wall_ms()
        world.nodes[third].replicas.leader_clocks.note(second, clock)
        world.nodes[second].crash(power=False)
        await world.until(lambda: follows(world.nodes[third], second))
        world.agreement.unfit.add(first.name)  # it has reported itself fit again
        world.agreement.depose(KEY)
        assert (await world.serving()).name == third
        assert state_of(world.nodes[third].partition(KEY)).clock_node == third
        assert await world.received_at("c2") - began == pytest.approx(LEASE_MS / 1000, abs=0.5)

    world.run(live())


def follows(node: SimNode, leader: str) -> bool:
    """Whether a replica follows a leader."""
    replica = node.replicas.get(KEY)
    assert replica is not None
    known = replica.assignment
    return known is not None and known.leader == leader
