"""Group commit: one write for a crowd, the truth for everyone."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from goq import limits
from goq.broker.log.admission import Admission
from goq.broker.log.append_queue import Decision
from goq.broker.log.group_commit import GroupCommit
from goq.broker.log.pending_appends import Appended, WrittenFrame
from goq.broker.log.shared_frame import SharedBy
from goq.broker.runtime.metrics import TopicStats, WriteTimes
from goq.clock import ManualClock
from goq.config.topic import Fsync
from goq.delivery.dedup.dedup_window import DedupWindow
from goq.delivery.dedup.producer_table import ProducerTable
from goq.errors import (
    GoqError,
    OutOfOrderSequence,
    ShuttingDown,
    StorageFailed,
    StorageFull,
    TimedOut,
    TooManyRequests,
)
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.hashes import dedup_hash
from goq.frame.view import FrameView
from goq.model import Acks, Message
from goq.storage.log.log import Log, LogConfig
from tests.support.broker.harness import BrokenDisk, frame, run
from tests.support.eventually import until

NO_WINDOW = DedupWindow(None, time_of=lambda _offset: None, factors=(1, 1))


class _Setup:
    def __init__(self, path: Path, config: LogConfig | None = None, **bounds: int) -> None:
        self.disk = BrokenDisk()
        self.log = Log.open(path / "log", self.disk, config)
        self.executor = ThreadPoolExecutor(4)
        self.producers = ProducerTable()
        self.committed: list[int] = []
        self.commits = 0
        self.failures: list[GoqError] = []
        self.sealed: list[int] = []
        self.commit = GroupCommit(
            self.log,
            self.executor,
            ManualClock(),
            7,
            on_commit=self._on_commit,
            on_seal=lambda segment: self.sealed.append(segment.base_offset),
            on_failure=self.failures.append,
            admission=Admission(
                self.producers, NO_WINDOW, lambda _offset: None, TopicStats(), ManualClock()
            ),
            write_seconds=WriteTimes(),
            **bounds,
        )

    def _on_commit(self, committed: Sequence[WrittenFrame]) -> None:
        self.commits += 1
        for view, appended, _, _ in committed:
            self.producers.add(view.header, appended.offset, appended.time_us)
            self.committed.append(appended.offset)

    async def held(self) -> asyncio.Future[Appended]:
        """Append a frame whose sync then waits for ``release``."""
        self.disk.hold("log")
        first = self.commit.append(frame(b"first"))
        await until(self.disk.holding.is_set)
        return first

    def values(self) -> list[bytes | None]:
        reading = self.log.reader.read(0, self.log.end_offset)
        return [v for f in reading.frames for v in f.values(0, f.header.message_count)]


def _run(
    path: Path, test: Callable[[_Setup], object], config: LogConfig | None = None, **bounds: int
) -> None:
    async def main() -> None:
        setup = _Setup(path, config, **bounds)
        try:
            await test(setup)
        finally:
            setup.disk.release()
            setup.disk.heal()
            try:
                await setup.commit.close()
            except StorageFailed:
                pass
            setup.executor.shutdown()

    run(main())


def test_a_crowd_shares_one_write_and_each_gets_its_own_offset(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        first = await setup.held()
        crowd = [setup.commit.append(frame(b"%d" % n, b"x")) for n in range(500)]
        setup.disk.release()
        assert (await first).offset == 0
        appended = await asyncio.gather(*crowd)
        assert [a.offset for a in appended] == list(range(1, 1001, 2))
        assert setup.commits == 2
        assert setup.disk.count("append", ".log") == 2
        assert setup.values()[1::2] == [b"%d" % n for n in range(500)]

    _run(tmp_path, test)


def test_frames_of_one_turn_of_the_loop_are_one_write(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        await asyncio.gather(*[setup.commit.append(frame(b"%d" % n)) for n in range(50)])
        assert setup.disk.count("append", ".log") == 1

    _run(tmp_path, test)


def test_a_batch_sent_again_while_the_first_is_in_flight_lies_in_the_log_once(
    tmp_path: Path,
) -> None:
    async def test(setup: _Setup) -> None:
        view = frame(b"a", b"b", mark=ProducerMark(5, 1, 0))
        setup.disk.hold("log")
        first = setup.commit.append(view)
        await until(setup.disk.holding.is_set)
        again = [setup.commit.append(view) for _ in range(3)]
        setup.disk.release()
        assert await first == Appended(0, 1_700_000_000_000_000)
        assert {await each for each in again} == {
            Appended(0, 1_700_000_000_000_000, duplicate=True)
        }
        assert setup.values() == [b"a", b"b"]

    _run(tmp_path, test)


def test_two_batches_of_one_producer_are_never_in_one_commit(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        sizes: list[int] = []
        write = setup.log.write
        setup.log.write = lambda batch: (
            sizes.append(len(batch.entries)),
            write(batch),
        )[1]
        views = [frame(b"%d" % n, mark=ProducerMark(5, 1, n)) for n in range(4)]
        appended = await asyncio.gather(*[setup.commit.append(v) for v in views])
        assert [a.offset for a in appended] == [0, 1, 2, 3]
        assert sizes == [1, 1, 1, 1]

    _run(tmp_path, test)


def test_a_gap_is_refused_and_what_comes_with_it_is_stored(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        await setup.commit.append(frame(b"a", mark=ProducerMark(5, 1, 0)))
        gap = setup.commit.append(frame(b"c", mark=ProducerMark(5, 1, 7)))
        other = setup.commit.append(frame(b"d"))
        with pytest.raises(OutOfOrderSequence):
            await gap
        assert (await other).offset == 1
        assert setup.values() == [b"a", b"d"]

    _run(tmp_path, test)


def test_a_failed_sync_fails_everyone_who_waits_and_ends_the_log(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        first = await setup.held()
        crowd = [setup.commit.append(frame(b"%d" % n)) for n in range(20)]
        alone = asyncio.ensure_future(setup.commit.run_exclusive(lambda: None))
        await asyncio.sleep(0)
        setup.disk.fail("sync", "", errno.EIO)
        setup.log.file._file.sync = lambda: (_ for _ in ()).throw(OSError(errno.EIO, "EIO"))
        setup.disk.release()
        await first  # its sync was under way before the disk broke
        for each in crowd:
            with pytest.raises(TimedOut):  # the bytes are in the file, and may come back
                await each
        with pytest.raises(StorageFailed):
            await alone
        assert len(setup.failures) == 1
        with pytest.raises(StorageFailed):
            setup.commit.append(frame(b"late"))
        with pytest.raises(StorageFailed):
            await setup.commit.run_exclusive(lambda: None)
        assert setup.values() == [b"first"]

    _run(tmp_path, test)


def test_a_full_disk_refuses_what_waits_and_takes_more_when_there_is_room(
    tmp_path: Path,
) -> None:
    async def test(setup: _Setup) -> None:
        first = await setup.held()
        crowd = [setup.commit.append(frame(b"%d" % n)) for n in range(20)]
        setup.disk.fail("append", ".log")
        setup.disk.release()
        await first
        for each in crowd:
            with pytest.raises(StorageFull):
                await each
        setup.disk.heal()
        assert (await setup.commit.append(frame(b"later"))).offset == 1
        assert setup.values() == [b"first", b"later"]

    _run(tmp_path, test)


def test_a_full_disk_refuses_neither_work_alone_nor_vital_frames_that_wait(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        faults, after = [errno.ENOSPC], list[bytes | None]()
        setup.disk.fault = lambda operation, path: (
            faults.pop() if operation == "append" and path.suffix == ".log" and faults else None
        )
        refused = [setup.commit.append(frame(b"no"))]
        vital = setup.commit.append(frame(b"vital"), begins_segment=True, is_vital=True)
        alone = asyncio.ensure_future(
            setup.commit.run_exclusive(lambda: after.extend(setup.values()))
        )
        await asyncio.sleep(0)
        refused.append(setup.commit.append(frame(b"nor this")))
        for each in refused:
            with pytest.raises(StorageFull):
                await each
        assert (await vital).offset == 0
        await alone
        assert after == setup.values() == [b"vital"]
        assert setup.commit.queued_bytes == 0

    _run(tmp_path, test)


def test_a_vital_frame_that_cannot_begin_is_refused_and_work_alone_goes_on(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        await setup.commit.append(frame(b"a"))

        def broken(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "ENOSPC")

        begin, setup.log.begin = setup.log.begin, broken
        vital = setup.commit.append(frame(b"b"), is_vital=True)
        alone = asyncio.ensure_future(setup.commit.run_exclusive(lambda: None))
        with pytest.raises(StorageFailed):
            await vital
        await alone
        setup.log.begin = begin
        assert (await setup.commit.append(frame(b"c"))).offset == 1

    _run(tmp_path, test)


def test_messages_after_those_that_a_full_disk_refused_share_a_frame_of_their_own(
    tmp_path: Path,
) -> None:
    async def test(setup: _Setup) -> None:
        def send(value: bytes) -> asyncio.Future[Appended]:
            done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            setup.commit.append_message(Message(value), 100, SharedBy(), done)
            return done

        first = await setup.held()
        refused = [send(b"a"), send(b"b")]
        setup.disk.fail("append", ".log")
        setup.disk.release()
        await first
        for each in refused:
            with pytest.raises(StorageFull):
                await each
        setup.disk.heal()
        later = [send(b"c"), send(b"d")]
        assert [(await each).offset for each in later] == [1, 2]
        assert setup.values() == [b"first", b"c", b"d"]

    _run(tmp_path, test)


def test_a_disk_that_fails_before_the_write_does_not_hang_the_log(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        await setup.commit.append(frame(b"a"))

        def broken(*_: object, **__: object) -> None:
            raise OSError(errno.EIO, "EIO")

        begin, setup.log.begin = setup.log.begin, broken
        with pytest.raises(StorageFailed):
            await setup.commit.append(frame(b"b"))
        setup.log.begin = begin
        assert (await setup.commit.append(frame(b"c"))).offset == 1

    _run(tmp_path, test)


def test_work_alone_comes_between_what_was_queued_before_and_after_it(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        first = await setup.held()
        before = setup.commit.append(frame(b"before"))
        seen: list[list[int]] = []
        alone = asyncio.ensure_future(
            setup.commit.run_exclusive(lambda: seen.append(list(setup.committed)))
        )
        await asyncio.sleep(0)
        after = setup.commit.append(frame(b"after"))
        setup.disk.release()
        await asyncio.gather(first, before, after, alone)
        assert seen == [[0, 1]]
        assert setup.values() == [b"first", b"before", b"after"]

    _run(tmp_path, test)


def test_what_has_a_time_and_is_not_stored_is_waited_for_by_those_of_a_later_time(
    tmp_path: Path,
) -> None:
    async def test(setup: _Setup) -> None:
        now_us = ManualClock().wall_us()
        await setup.commit.wait_for_times_before(now_us + 1)
        first = await setup.held()
        await setup.commit.wait_for_times_before(now_us)
        waiting = asyncio.ensure_future(setup.commit.wait_for_times_before(now_us + 1))
        await asyncio.sleep(0)
        assert not waiting.done()
        setup.disk.release()
        await waiting
        assert first.done()
        assert setup.committed == [0]

    _run(tmp_path, test)


def test_a_frame_that_a_thread_decides_about_may_have_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEDUP_IDS_ADMITTED_AT_ONCE", 0)
    deciding, may_decide = threading.Event(), threading.Event()

    async def test(setup: _Setup) -> None:
        decide = setup.commit._queue.decide

        def held(frame: FrameView) -> Decision:
            deciding.set()
            assert may_decide.wait(60)
            return decide(frame)

        monkeypatch.setattr(setup.commit._queue, "decide", held)
        columns = Columns([b"v"], dedup_ids=[dedup_hash("id")])
        frame_of_id = FrameView.parse(encode_frame(columns))
        first = setup.commit.append(frame_of_id)
        await until(deciding.is_set)
        waiting = asyncio.ensure_future(setup.commit.wait_for_times_before(1))
        await asyncio.sleep(0)
        assert not waiting.done()
        may_decide.set()
        await asyncio.gather(first, waiting)

    _run(tmp_path, test)


def test_nobody_waits_for_what_the_disk_refused(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        setup.disk.fail("append", "log")
        with pytest.raises(StorageFull):
            await setup.commit.append(frame(b"a"))
        await setup.commit.wait_for_times_before(ManualClock().wall_us() + 1)

    _run(tmp_path, test)


def test_work_alone_gets_its_turn_while_others_never_stop_writing(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        stop = False

        async def writer() -> None:
            while not stop:
                await setup.commit.append(frame(b"x"))

        writers = [asyncio.ensure_future(writer()) for _ in range(4)]
        for _ in range(5):
            await setup.commit.run_exclusive(lambda: None)
        stop = True
        await asyncio.gather(*writers)

    _run(tmp_path, test)


def test_work_alone_that_fails_says_so_and_the_log_goes_on(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        def broken() -> None:
            raise OSError(errno.ENOENT, "gone")

        with pytest.raises(FileNotFoundError):
            await setup.commit.run_exclusive(broken)
        assert (await setup.commit.append(frame(b"a"))).offset == 0
        assert not setup.failures

    _run(tmp_path, test)


def test_closing_makes_what_is_queued_durable_and_takes_nothing_more(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        first = await setup.held()
        queued = setup.commit.append(frame(b"queued"))
        closing = asyncio.ensure_future(setup.commit.close())
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDown):
            setup.commit.append(frame(b"late"))
        setup.disk.release()
        await closing
        assert ((await first).offset, (await queued).offset) == (0, 1)
        await setup.commit.close()  # again is fine
        log = Log.open(tmp_path / "log", BrokenDisk())
        assert log.end_offset == 2
        log.close()

    _run(tmp_path, test)


def test_a_log_that_is_aborted_refuses_everything_with_the_same_error(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        commit, error = setup.commit, ShuttingDown("another node leads")
        await commit.append(frame(b"stored"))
        commit.abort(error)
        ignored: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        by = SharedBy(ProducerMark(0, 0, 0), Acks.QUORUM, 2)
        refused: list[Callable[[], object]] = [
            lambda: commit.check_room(1),
            lambda: commit.append(frame(b"v")),
            lambda: commit.append_message(Message(b"v"), 1, by, ignored),
        ]
        for ask in refused:
            with pytest.raises(ShuttingDown) as raised:
                ask()
            assert raised.value is error
        for waits in (commit.run_exclusive(lambda: None), commit.wait_for_commit(1)):
            with pytest.raises(ShuttingDown):
                await asyncio.wait_for(waits, 10)
        assert commit.is_quiet
        assert setup.values() == [b"stored"]

    _run(tmp_path, test)


def test_too_much_waiting_is_refused_before_anything_is_queued(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        first = await setup.held()
        setup.commit.check_room(10**9)  # a lone one may be as large as it likes
        queued = setup.commit.append(frame(b"x" * 900))
        with pytest.raises(TooManyRequests):
            setup.commit.check_room(900)
        setup.disk.release()
        await asyncio.gather(first, queued)
        setup.commit.check_room(900)

    _run(tmp_path, test, queue_bytes_max=1000)


def test_frames_that_nobody_waits_for_any_more_are_stored_all_the_same(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        first = await setup.held()
        gone = setup.commit.append(frame(b"gone"))
        gone.cancel()
        setup.disk.release()
        await first
        assert (await setup.commit.append(frame(b"last"))).offset == 2
        assert setup.values() == [b"first", b"gone", b"last"]

    _run(tmp_path, test)


def test_an_interval_log_is_synced_soon_after_and_fails_when_that_does(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        syncs = setup.disk.count("sync", ".log")
        await setup.commit.append(frame(b"a"))
        await until(lambda: setup.disk.count("sync", ".log") > syncs)
        setup.disk.fail("sync", ".log", errno.EIO)
        await setup.commit.append(frame(b"b"))
        await until(lambda: bool(setup.failures))
        with pytest.raises(StorageFailed):
            setup.commit.append(frame(b"c"))

    _run(tmp_path, test, LogConfig(fsync=Fsync.INTERVAL), fsync_interval_ms=1)


def test_segments_roll_between_commits_and_are_reported_once_sealed(tmp_path: Path) -> None:
    async def test(setup: _Setup) -> None:
        for number in range(4):
            await setup.commit.append(frame(b"%d" % number * 600))
        await setup.commit.append(frame(b"head"), begins_segment=True)
        assert setup.sealed == [0, 2, 4][: len(setup.sealed)]
        assert len(setup.log.segments) == len(setup.sealed) + 1
        assert len(setup.values()) == 5

    _run(tmp_path, test, LogConfig(segment_bytes=1000))
