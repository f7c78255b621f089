"""An append that is on one node's disk alone is neither acknowledged nor shown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from goq import limits
from goq.broker.log.admission import Admission
from goq.broker.log.group_commit import GroupCommit
from goq.broker.log.pending_appends import Appended, WrittenFrame, wait_for_all
from goq.broker.runtime.metrics import TopicStats, WriteTimes
from goq.clock import ManualClock
from goq.delivery.dedup.dedup_window import DedupWindow
from goq.delivery.dedup.producer_table import ProducerTable
from goq.errors import (
    NotLeader,
    OutOfOrderSequence,
    StorageFull,
    TimedOut,
    TooManyRequests,
    Unavailable,
)
from goq.frame.encoder import ProducerMark
from goq.model import Acks
from goq.storage.log.log import Log
from tests.support.broker.harness import frame, run, until
from tests.support.broker.held_quorum import HeldQuorum
from tests.support.storage.disk import SimulatedDisk

NO_WINDOW = DedupWindow(None, time_of=lambda _offset: None, factors=(1, 1))
LOST = NotLeader("another node leads")


class _Setup:
    def __init__(self, path: Path, **bounds: int) -> None:
        self.disk = SimulatedDisk()
        self.log = Log.open(path / "log", self.disk)
        self.executor = ThreadPoolExecutor(1)
        self.producers = ProducerTable()
        self.quorum = HeldQuorum()
        self.shown: list[int] = []
        self.commit = GroupCommit(
            self.log,
            self.executor,
            ManualClock(),
            7,
            on_commit=self._on_commit,
            on_seal=lambda _segment: None,
            admission=Admission(
                self.producers,
                NO_WINDOW,
                lambda _offset: None,
                TopicStats(),
                ManualClock(),
                is_ahead=True,
            ),
            quorum=self.quorum,
            write_seconds=WriteTimes(),
            **bounds,
        )

    def _on_commit(self, committed: Sequence[WrittenFrame]) -> None:
        for view, appended, _, _ in committed:
            self.producers.add(view.header, appended.offset, appended.time_us)
            self.shown.append(appended.offset)

    async def stored(self, end_offset: int) -> None:
        """Wait until the leader has so much on its disk."""
        await until(lambda: self.quorum.appended_to == end_offset)


def _run(path: Path, test: Callable[[_Setup], Awaitable[None]], **bounds: int) -> None:
    async def main() -> None:
        setup = _Setup(path, **bounds)
        try:
            await test(setup)
        finally:
            await setup.commit.close()
            setup.executor.shutdown()

    run(main())


def test_an_append_is_acknowledged_and_shown_when_the_high_watermark_passes_it(
    tmp_path: Path,
) -> None:
    async def test(setup: _Setup) -> None:
        first = setup.commit.append(frame(b"a", b"b"))
        await setup.stored(2)
        second = setup.commit.append(frame(b"c"))
        await setup.stored(3)
        setup.quorum.reach(1)
        assert not first.done()
        setup.quorum.reach(2)
        assert (await first).offset == 0
        assert setup.shown == [0]
        assert not second.done()
        setup.quorum.reach(3)
        assert (await second).offset == 2
        assert setup.shown == [0, 2]

    _run(tmp_path, test)


def test_who_asks_for_all_of_a_time_waits_for_other_nodes_to_have_it(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        now_us = ManualClock().wall_us()
        append = setup.commit.append(frame(b"a"))
        await setup.stored(1)
        await setup.commit.wait_for_times_before(now_us)
        waiting = asyncio.ensure_future(setup.commit.wait_for_times_before(now_us + 1))
        await asyncio.sleep(0)
        assert not waiting.done()
        setup.quorum.reach(1)
        await asyncio.gather(append, waiting)

    _run(tmp_path, test)


def test_who_asks_for_all_of_a_time_is_refused_if_other_nodes_do_not_have_it_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "QUORUM_WAIT_S", 0)

    async def test(setup: _Setup) -> None:
        append = setup.commit.append(frame(b"a"), acks=Acks.LEADER)
        await append
        with pytest.raises(TimedOut, match="have not confirmed"):
            await setup.commit.wait_for_times_before(ManualClock().wall_us() + 1)

    _run(tmp_path, test)


def test_a_batch_is_offered_to_other_nodes_once_the_disk_has_taken_one(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        setup.quorum.takes_offers = True
        setup.commit.append(frame(b"a"))
        await setup.stored(1)
        assert setup.quorum.offered == []
        setup.commit.append(frame(b"b"))
        await until(lambda: setup.quorum.offered == [(1, 2)])
        await setup.stored(2)
        assert setup.quorum.kept == [(0, 1)]  # the other is kept as it is offered

    _run(tmp_path, test)


def test_after_a_batch_that_the_disk_refused_the_next_one_is_not_offered(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        setup.commit.append(frame(b"a"))
        await setup.stored(1)
        setup.disk.capacity_bytes = setup.disk.used_bytes
        with pytest.raises(StorageFull):
            await setup.commit.append(frame(b"b"))
        setup.disk.capacity_bytes = None
        setup.quorum.takes_offers = True
        for stored in (2, 3):
            setup.commit.append(frame(b"c"))
            await setup.stored(stored)
        assert setup.quorum.offered == [(2, 3)]

    _run(tmp_path, test)


@pytest.mark.parametrize("is_offered", [True, False])
def test_a_full_disk_ends_the_writer_only_if_other_nodes_may_have_what_it_refused(
    tmp_path: Path, *, is_offered: bool
) -> None:
    async def test(setup: _Setup) -> None:
        setup.quorum.takes_offers = is_offered
        setup.commit.append(frame(b"a"))
        await setup.stored(1)
        setup.disk.capacity_bytes = setup.disk.used_bytes
        refused = setup.commit.append(frame(b"b"))
        with pytest.raises(TimedOut if is_offered else StorageFull):
            await refused
        setup.disk.capacity_bytes = None
        if is_offered:  # another frame at this offset would be in the same epoch
            with pytest.raises(StorageFull):
                setup.commit.append(frame(b"c"))
        else:
            setup.commit.append(frame(b"c"))
            await setup.stored(2)

    _run(tmp_path, test)


def test_a_writer_is_quiet_when_all_that_it_took_is_safe(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        assert setup.commit.is_quiet
        done = setup.commit.append(frame(b"a"))
        assert not setup.commit.is_quiet
        await setup.stored(1)
        assert not setup.commit.is_quiet
        setup.quorum.reach_end()
        await done
        await until(lambda: setup.commit.is_quiet)

    _run(tmp_path, test)


def test_who_asks_for_the_leader_alone_is_answered_before_anybody_sees_the_message(
    tmp_path: Path,
) -> None:
    async def test(setup: _Setup) -> None:
        done = setup.commit.append(frame(b"a"), acks=Acks.LEADER)
        assert (await done).offset == 0
        assert setup.shown == []
        setup.quorum.reach_end()
        assert setup.shown == [0]

    _run(tmp_path, test)


def test_a_batch_that_comes_again_meanwhile_is_stored_once_and_waits_for_the_first(
    tmp_path: Path,
) -> None:
    async def test(setup: _Setup) -> None:
        view = frame(b"a", mark=ProducerMark(5, 1, 0))
        first = setup.commit.append(view)
        await setup.stored(1)
        again = setup.commit.append(view)
        await setup.commit.run_exclusive(lambda: None)
        assert setup.log.end_offset == 1
        assert not again.done()
        setup.quorum.reach_end()
        assert (await again).duplicate
        assert (await again).offset == (await first).offset

    _run(tmp_path, test)


def test_the_next_batch_of_a_producer_need_not_wait_for_the_one_before(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        setup.commit.append(frame(b"a", mark=ProducerMark(5, 1, 0)))
        await setup.stored(1)
        setup.commit.append(frame(b"b", mark=ProducerMark(5, 1, 1)))
        await setup.stored(2)
        assert setup.producers.progress(5) is None
        setup.quorum.reach(1)
        assert setup.producers.progress(5) == (1, 1)
        setup.quorum.reach(2)
        assert setup.producers.progress(5) == (1, 2)

    _run(tmp_path, test)


def test_nothing_is_taken_while_the_quorum_refuses(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        setup.quorum.refusal = Unavailable("too few nodes")
        with pytest.raises(Unavailable, match="too few nodes"):
            setup.commit.check_room(1)
        setup.quorum.refusal = None
        setup.commit.check_room(1)

    _run(tmp_path, test)


def test_what_waits_for_other_nodes_is_bounded(tmp_path: Path) -> None:
    waits = frame(b"a" * 1000)

    async def test(setup: _Setup) -> None:
        setup.commit.append(waits)
        await setup.stored(1)
        setup.commit.check_room(100)
        with pytest.raises(TooManyRequests, match="other nodes"):
            setup.commit.check_room(101)
        setup.quorum.reach_end()
        setup.commit.check_room(101)

    _run(tmp_path, test, queue_bytes_max=len(waits.buffer) + 100)


def test_who_waits_when_the_leadership_ends_hears_of_it(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        view = frame(b"a", mark=ProducerMark(5, 1, 0))
        stored = setup.commit.append(view)
        await setup.stored(1)
        again = setup.commit.append(view)
        await setup.commit.run_exclusive(lambda: None)
        queued = setup.commit.append(frame(b"b"))
        setup.commit.abort(LOST)
        for done in (stored, again):  # the next leader may have it
            with pytest.raises(TimedOut):
                await done
        with pytest.raises(NotLeader):
            await queued
        with pytest.raises(NotLeader):
            setup.commit.append(frame(b"c"))
        setup.quorum.reach(9)
        assert setup.shown == []
        await setup.commit.close()
        assert setup.log.end_offset == 1

    _run(tmp_path, test)


def test_what_is_being_written_when_the_leadership_ends_may_be_stored(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        written = setup.commit.append(frame(b"a"))
        await asyncio.sleep(0)  # the write begins
        queued = setup.commit.append(frame(b"b"))
        setup.commit.abort(LOST)
        with pytest.raises(NotLeader):
            await queued
        await setup.commit.close()
        with pytest.raises(TimedOut):
            await written
        assert setup.log.end_offset == 1

    _run(tmp_path, test)


def test_a_refusal_is_told_when_it_is_sure_that_nobody_else_leads(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        first = setup.commit.append(frame(b"a", mark=ProducerMark(5, 1, 0)))
        await setup.stored(1)
        setup.quorum.reach_end()
        await first
        setup.quorum.is_sure = False
        refused = setup.commit.append(frame(b"c", mark=ProducerMark(5, 1, 2)))
        await setup.commit.run_exclusive(lambda: None)
        assert not refused.done()
        setup.quorum.be_sure()
        with pytest.raises(OutOfOrderSequence):
            await refused

    _run(tmp_path, test)


def test_a_deposed_leader_refuses_nothing_for_good(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        first = setup.commit.append(frame(b"a", mark=ProducerMark(5, 1, 0)))
        await setup.stored(1)
        setup.quorum.reach_end()
        await first
        setup.quorum.is_sure = False
        follows_what_is_elsewhere = setup.commit.append(frame(b"c", mark=ProducerMark(5, 1, 2)))
        await setup.commit.run_exclusive(lambda: None)
        setup.commit.abort(LOST)
        setup.quorum.be_sure()
        with pytest.raises(NotLeader):
            await follows_what_is_elsewhere

    _run(tmp_path, test)


def test_closing_does_not_wait_for_other_nodes(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        done = setup.commit.append(frame(b"a"))
        await setup.commit.close()
        with pytest.raises(TimedOut):
            await done

    _run(tmp_path, test)


def test_a_request_of_several_frames_is_refused_only_if_all_are() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        stored, refused, late, unknown = (loop.create_future() for _ in range(4))
        stored.set_result(Appended(0, 0))
        refused.set_exception(LOST)
        late.set_exception(TooManyRequests("wait"))
        unknown.set_exception(TimedOut("perhaps"))
        with pytest.raises(NotLeader):
            await wait_for_all([refused, late])
        with pytest.raises(TimedOut, match="a part"):
            await wait_for_all([stored, refused])
        with pytest.raises(TimedOut, match="perhaps"):
            await wait_for_all([refused, unknown])
        assert await wait_for_all([]) == []

    run(test())
