"""A clock that jumps ahead deletes nothing at once."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from goq.broker.retention.retention_clock import HOLD_US, JUMP_US, RetentionClock
from goq.clock import ManualClock
from goq.storage.disk import RealDisk
from tests.support.api.calls import publish
from tests.support.node.running_node import RunningNode, running_node

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Machine:
    """A machine whose retention clock is read once a minute while it runs."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self._path = path / "clock"
        self.start()

    def start(self) -> None:
        executor = ThreadPoolExecutor(1)
        self.retention = RetentionClock(self.clock, RealDisk(), executor, self._path)

    def reboot(self, off_ms: int) -> None:
        self.clock.now_us += off_ms * 1000
        self.clock.jumped_us = self.clock.now_us
        self.start()

    def read(self) -> int:
        """Return how far the time of retention is behind the clock, in milliseconds."""
        return (self.clock.wall_us() - asyncio.run(self.retention.now_us())) // 1000

    def run(self, duration_ms: int) -> int:
        for _ in range(duration_ms // HOUR_MS * 2):
            self.clock.advance_ms(HOUR_MS // 2)
            behind_ms = self.read()
        return behind_ms


def test_a_jump_ahead_does_not_count_until_the_clock_has_stayed_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(tmp_path)
    assert machine.run(5 * HOUR_MS) == 0
    machine.clock.jump_ms(30 * DAY_MS)
    assert machine.read() == 30 * DAY_MS
    assert machine.retention.is_held
    assert machine.run(23 * HOUR_MS) == 30 * DAY_MS
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert machine.run(2 * HOUR_MS) == 0
    assert not machine.retention.is_held


def test_a_clock_that_is_set_back_counts_at_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.read()
    machine.clock.jump_ms(30 * DAY_MS)
    machine.read()
    machine.clock.jump_ms(-30 * DAY_MS)
    assert machine.read() == 0
    assert not machine.retention.is_held


def test_a_clock_that_jumps_again_is_held_from_then_on(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.read()
    for step, days in ((1, 1), (1, 2), (-1, 1)):
        machine.clock.jump_ms(step * DAY_MS)
        assert machine.read() == days * DAY_MS
        assert machine.run(20 * HOUR_MS) == days * DAY_MS


@pytest.mark.parametrize("boots", [False, True])
def test_a_jump_is_noticed_over_a_restart(tmp_path: Path, boots: bool) -> None:
    machine = Machine(tmp_path)
    machine.run(3 * HOUR_MS)
    if boots:
        machine.reboot(off_ms=30 * DAY_MS)
    else:
        machine.clock.jump_ms(30 * DAY_MS)
        machine.start()
    assert 0 <= machine.read() - 30 * DAY_MS <= HOUR_MS
    assert machine.run(25 * HOUR_MS) == 0


@pytest.mark.parametrize("boots", [False, True])
def test_the_hours_are_added_up_that_a_machine_runs_between_its_stops(
    tmp_path: Path, boots: bool
) -> None:
    machine = Machine(tmp_path)
    machine.run(3 * HOUR_MS)
    machine.clock.jump_ms(2 * DAY_MS)
    behind_ms = []
    for _ in range(6):
        behind_ms.append(machine.run(10 * HOUR_MS))
        if boots:
            machine.reboot(off_ms=14 * HOUR_MS)
        else:
            machine.start()
    assert behind_ms[1] > 2 * DAY_MS - HOUR_MS
    assert 0 in behind_ms[2:4], "an hour at each stop may be lost"
    assert behind_ms[-1] == 0, "also after the jumps of more nights"


def test_a_clock_that_jumps_again_while_the_node_runs_is_held_anew_though_it_was_restarted(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    machine.read()
    machine.clock.jump_ms(DAY_MS)
    machine.run(20 * HOUR_MS)
    machine.start()
    machine.run(HOUR_MS)
    machine.clock.jump_ms(DAY_MS)
    assert machine.run(20 * HOUR_MS) >= 2 * DAY_MS


@pytest.mark.parametrize("stored", [b"", b"nonsense", b"1 2 3 4"])
def test_a_reading_that_cannot_be_read_counts_as_none(tmp_path: Path, stored: bytes) -> None:
    (tmp_path / "clock").write_bytes(stored)
    assert Machine(tmp_path).read() == 0


def test_small_steps_and_time_that_passes_are_followed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.read()
    machine.clock.jump_ms(JUMP_US // 1000)
    assert machine.read() == 0
    machine.clock.advance_ms(10 * HOLD_US // 1000)
    assert machine.read() == 0


def deleted_from(node: RunningNode) -> int:
    """Apply retention; return the first offset that is left."""
    broker = node.node.broker
    assert broker is not None
    node.on_loop(broker.retention_manager.apply)
    return broker.topics["t"].partitions[0].log_start_offset


def test_messages_stay_when_the_clock_of_a_node_jumps_by_a_month(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        settings = {"retention.age": "7d", "segment.age": "1s"}
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 1, "settings": settings})
        publish(node, "t", "kept")
        node.clock.ahead_ms += 2000
        assert deleted_from(node) == 0
        publish(node, "t", "last")
        node.clock.ahead_ms += 30 * DAY_MS
        node.clock.jumped_ms += 30 * DAY_MS
        assert deleted_from(node) == 0
        assert "goq_retention_clock_held 1.0" in node.request("GET", "/metrics").body.decode()
        node.clock.jumped_ms = 0  # as if the month had passed
        assert deleted_from(node) == 2
        assert "goq_retention_clock_held 0.0" in node.request("GET", "/metrics").body.decode()
