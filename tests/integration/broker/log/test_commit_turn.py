"""The commit turn: one record for all logs that append in it, and the truth for each."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from goq import clock, limits
from goq.broker.log import commit_turn
from goq.broker.log.commit_turn import CommitTurn
from goq.broker.log.group_commit import GroupCommit
from goq.broker.runtime.metrics import WriteTimes
from goq.clock import ManualClock
from goq.errors import StorageFailed, StorageFull, TimedOut
from goq.storage.journal.journal import NodeJournal
from goq.storage.journal.piece import scan_pieces
from goq.storage.log.log import Log
from tests.support.broker.harness import BrokenDisk, frame, run
from tests.support.eventually import until


class _Node:
    """Logs of one node, with their writers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = BrokenDisk()
        self.threads = ThreadPoolExecutor(4)
        self.commit_thread = ThreadPoolExecutor(1)
        self.journal_thread = ThreadPoolExecutor(1)
        root = path / "topics"
        self.journal = NodeJournal.open(
            self.disk, path / "journal", root, self.journal_thread, ManualClock()
        )
        self.turn = CommitTurn(self.journal, self.commit_thread)
        self.committed: list[str] = []
        self.commits = [self._commit(root / f"t{n}/0/messages") for n in range(3)]

    def _commit(self, directory: Path) -> GroupCommit:
        log = Log.open(directory, self.disk, journal=self.journal)
        return GroupCommit(
            log,
            self.threads,
            ManualClock(),
            7,
            on_commit=lambda committed: self.committed.extend(
                f"{directory.parent.parent.name}:{each.appended.offset}" for each in committed
            ),
            on_seal=lambda _segment: None,
            write_seconds=WriteTimes(),
            turn=self.turn,
        )

    async def warm_up(self) -> None:
        """Wait until the journal has room: before, each log syncs its own file."""
        await until(lambda: self.journal.has_room_for(1))

    def numbers(self) -> int:
        return self.journal.last_mark.number

    async def close(self) -> None:
        self.disk.release()
        self.disk.heal()
        for commit in self.commits:
            try:
                await commit.close()
            except StorageFailed:
                pass
        for executor in (self.threads, self.commit_thread, self.journal_thread):
            executor.shutdown()
        self.journal.close()


def _run(path: Path, test: Callable[[_Node], Awaitable[None]]) -> None:
    async def main() -> None:
        node = _Node(path)
        try:
            await node.warm_up()
            await test(node)
        finally:
            await node.close()

    run(main())


def test_logs_that_append_in_one_turn_share_one_record_and_one_sync(tmp_path: Path) -> None:
    async def test(node: _Node) -> None:
        before = node.disk.count("sync", "")
        appended = await asyncio.gather(
            *[commit.append(frame(b"%d" % n)) for n in range(5) for commit in node.commits]
        )
        assert [a.offset for a in appended] == [n // 3 for n in range(15)]
        assert node.numbers() == 1
        assert node.disk.count("sync", "") == before + 1
        assert node.disk.count("sync", ".journal") > 0

    _run(tmp_path, test)


def test_others_get_a_turn_between_the_commits_of_large_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: _Node) -> None:
        monkeypatch.setattr(clock, "SLICE_S", 0.0)
        before = node.numbers()
        appends = [asyncio.ensure_future(each.append(frame(b"x"))) for each in node.commits]
        turns: list[int] = []
        while not all(append.done() for append in appends):
            turns.append(len(node.committed))
            await asyncio.sleep(0)
        assert {1, 2} <= set(turns)
        assert node.committed == ["t0:0", "t1:0", "t2:0"]
        assert node.numbers() == before + 1
        await node.commits[0].append(frame(b"y"))
        assert node.committed[3:] == ["t0:1"]

    _run(tmp_path, test)


def test_the_event_loop_writes_a_small_record_itself(tmp_path: Path) -> None:
    async def test(node: _Node) -> None:
        writers: set[int] = set()
        node.disk.fault = lambda _operation, _path: writers.add(threading.get_ident())
        await node.commits[0].append(frame(b"x"))
        assert writers == {threading.get_ident()}

    _run(tmp_path, test)


def test_a_thread_writes_after_the_disk_was_slow_and_for_longer_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_turn, "_SLOW_WRITE_S", -1.0)  # every write is slow
    monkeypatch.setattr(commit_turn, "_THREAD_S_MIN", 1000.0)
    monkeypatch.setattr(commit_turn, "_THREAD_S_MAX", 3000.0)

    async def test(node: _Node) -> None:
        for least_s, most_s in ((500, 1000), (1000, 2000), (2000, 3000), (2000, 3000)):
            node.turn._thread_until_s = 0.0
            await node.commits[0].append(frame(b"x"))
            left_s = node.turn._thread_until_s - asyncio.get_running_loop().time()
            assert least_s < left_s <= most_s
        node.turn._thread_until_s = asyncio.get_running_loop().time() + 60
        writers: set[int] = set()
        node.disk.fault = lambda _operation, _path: writers.add(threading.get_ident())
        await node.commits[0].append(frame(b"x"))
        assert threading.get_ident() not in writers

    _run(tmp_path, test)


def test_what_comes_while_a_thread_writes_is_one_later_record(tmp_path: Path) -> None:
    async def test(node: _Node) -> None:
        node.turn._thread_until_s = asyncio.get_running_loop().time() + 60
        node.disk.hold(".journal")
        first = node.commits[0].append(frame(b"first"))
        await until(node.disk.holding.is_set)
        later = [commit.append(frame(b"later")) for commit in node.commits for _ in range(10)]
        await asyncio.sleep(0)
        assert node.committed == []
        node.disk.release()
        await asyncio.gather(first, *later)
        assert node.numbers() == 2

    _run(tmp_path, test)


def test_a_slow_segment_of_one_log_holds_up_no_other(tmp_path: Path) -> None:
    async def test(node: _Node) -> None:
        node.disk.hold("t0/")
        large = node.commits[0].append(frame(bytes(limits.JOURNAL_ENTRY_BYTES_MAX)))
        await until(node.disk.holding.is_set)
        for commit in node.commits[1:]:
            await asyncio.wait_for(commit.append(frame(b"small")), 30)
        assert not large.done()
        node.disk.release()
        assert (await large).offset == 0

    _run(tmp_path, test)


def test_without_room_in_the_journal_each_log_syncs_its_segment(tmp_path: Path) -> None:
    async def test(node: _Node) -> None:
        node.disk.fail("write_at", ".journal")  # a file system that copies on write is full
        appended = await asyncio.gather(*[c.append(frame(b"x")) for c in node.commits])
        assert [a.offset for a in appended] == [0, 0, 0]
        assert node.numbers() == 0
        assert all(node.disk.count("sync", f"t{n}/") for n in range(3))
        node.disk.heal()
        await node.commits[0].append(frame(b"x"))
        assert node.numbers() == 1

    _run(tmp_path, test)


def test_a_log_that_is_full_does_not_refuse_the_others_of_its_turn(tmp_path: Path) -> None:
    async def test(node: _Node) -> None:
        node.disk.fail("append", "t1/")
        results = await asyncio.gather(
            *[c.append(frame(b"x")) for c in node.commits], return_exceptions=True
        )
        assert isinstance(results[1], StorageFull)
        assert [getattr(results[n], "offset", None) for n in (0, 2)] == [0, 0]
        (piece,) = (p for p in scan_pieces(node.disk, node.path / "journal") if p.records)
        paths = [entry.path for record in piece.records for entry in record.entries()]
        assert paths == ["t0/0/messages", "t2/0/messages"]

    _run(tmp_path, test)


def test_a_record_that_fails_leaves_the_outcome_unknown_and_ends_its_logs(tmp_path: Path) -> None:
    async def test(node: _Node) -> None:
        node.disk.fail("sync", ".journal", errno.EIO)
        results = await asyncio.gather(
            *[c.append(frame(b"x")) for c in node.commits[:2]], return_exceptions=True
        )
        assert [type(result) for result in results] == [TimedOut, TimedOut]
        node.disk.heal()
        for commit in node.commits[:2]:
            with pytest.raises(StorageFailed):
                await commit.append(frame(b"y"))
        await node.commits[2].append(frame(b"y"))
        assert node.committed == ["t2:0"]

    _run(tmp_path, test)


def test_a_turn_larger_than_a_record_continues_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: _Node) -> None:
        monkeypatch.setattr(limits, "JOURNAL_ENTRY_BYTES_MAX", 1000)
        monkeypatch.setattr(limits, "JOURNAL_RECORD_BYTES_MAX", 1100)
        await asyncio.gather(*[c.append(frame(bytes(500))) for c in node.commits])
        assert node.numbers() == 3

    _run(tmp_path, test)
