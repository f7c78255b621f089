"""The clock of retention: what it believes, and how often it writes that down."""

from __future__ import annotations

from pathlib import Path

from goq.broker.retention.retention_clock import HOLD_US, JUMP_US, STORED_US, RetentionClock
from goq.clock import ManualClock
from tests.support.broker.harness import run
from tests.support.storage.disk import InlineExecutor, SimulatedDisk

PATH = Path("/data/clock")


class Node:
    """A node that starts again and again on one disk."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.disk.make_dir(PATH.parent)
        self.clock = ManualClock()
        self.start()

    def start(self) -> None:
        self.retention = RetentionClock(self.clock, self.disk, InlineExecutor(), PATH)

    def advance_us(self, step_us: int) -> None:
        self.clock.advance_ms(step_us // 1000)

    def stored_us(self) -> int:
        return int(self.disk.read_all(PATH).split()[0])


def test_the_time_is_stored_at_first_then_now_and_then_and_when_it_is_set_back() -> None:
    async def test() -> None:
        node = Node()
        began_us = await node.retention.now_us()
        assert node.stored_us() == began_us == node.clock.wall_us()
        node.advance_us(STORED_US - 1_000)
        await node.retention.now_us()
        assert node.stored_us() == began_us
        node.advance_us(1_000)
        assert await node.retention.now_us() == node.stored_us() == began_us + STORED_US
        node.clock.jump_ms(-5)
        assert await node.retention.now_us() == node.stored_us() == node.clock.wall_us()

    run(test())


def test_a_jump_counts_after_the_clock_has_stayed_there() -> None:
    async def test() -> None:
        node = Node()
        before_us = await node.retention.now_us()
        node.clock.jump_ms(JUMP_US // 1000)
        assert await node.retention.now_us() == before_us + JUMP_US
        assert not node.retention.is_held
        before_us += JUMP_US
        node.clock.jump_ms(JUMP_US // 1000 + 1)
        for waited_us in (0, HOLD_US - 1_000):
            node.advance_us(waited_us)
            assert await node.retention.now_us() == before_us + waited_us
            assert node.retention.is_held
        node.advance_us(1_000)
        assert await node.retention.now_us() == node.clock.wall_us()
        assert not node.retention.is_held

    run(test())


def test_a_start_holds_a_clock_that_is_ahead_of_what_was_stored() -> None:
    async def test() -> None:
        node = Node()
        before_us = await node.retention.now_us()
        node.clock.jump_ms(2 * JUMP_US // 1000)
        node.start()
        assert await node.retention.now_us() == before_us
        assert node.retention.is_held
        node.clock.jump_ms(-2 * JUMP_US // 1000)
        assert await node.retention.now_us() == before_us
        assert not node.retention.is_held

    run(test())


def test_a_clock_without_a_file_is_believed_at_the_start() -> None:
    async def test() -> None:
        clock = ManualClock()
        retention = RetentionClock(clock, SimulatedDisk(), InlineExecutor(), None)
        assert await retention.now_us() == clock.wall_us()
        clock.jump_ms(2 * JUMP_US // 1000)
        assert await retention.now_us() < clock.wall_us()

    run(test())
