"""When a move to the store that failed is tried again, and what is told of it."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from goq.broker.retention import archive_uploader
from goq.broker.retention.archive_uploader import ArchiveUploader
from goq.errors import Unavailable
from goq.storage.archive.store_cache import StoreCache
from goq.storage.archive.tiered_disk import TieredDisk
from goq.storage.node_db import ArchiveRow
from tests.support.storage.disk import SimulatedDisk

ROOT = Path("/data/archive")


class Trying(ArchiveUploader):
    """Its tries end as the test says: with an error, or None for a success."""

    def __init__(self, outcomes: list[Exception | None]) -> None:
        disk = SimulatedDisk()
        cache = StoreCache(disk, ROOT.with_name("cache"), 1000)
        super().__init__(ROOT, TieredDisk(disk, cache), "s3://bucket", ThreadPoolExecutor(1))
        self._outcomes = iter(outcomes)

    async def run_once(self) -> None:
        outcome = next(self._outcomes)
        self._woken.set()  # there is more to do
        if outcome is not None:
            raise outcome


@pytest.fixture
def pauses_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that it makes; each is over at once."""
    found: list[float] = []

    async def sleep(pause_s: float) -> None:
        found.append(pause_s)

    monkeypatch.setattr(archive_uploader.asyncio, "sleep", sleep)
    return found


def run(uploader: Trying) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):  # the test has no more outcomes
        asyncio.run(uploader.run())


def test_pauses_double_up_to_a_minute_and_begin_anew_after_a_success(
    pauses_s: list[float],
) -> None:
    away = Unavailable("the store does not answer")
    run(Trying([away] * 8 + [None] + [away] * 2))
    assert pauses_s == [1, 2, 4, 8, 16, 32, 60, 60, 1, 2]


def test_a_failure_is_counted_each_time_and_logged_once_until_it_is_over(
    pauses_s: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "goq.broker")
    away, full = Unavailable("the store does not answer"), OSError("the disk is full")
    uploader = Trying([away, full, full])
    assert (uploader.failures, uploader.failure) == (0, "")
    run(uploader)
    assert (uploader.failures, uploader.failure) == (3, "the disk is full")
    told = [
        "the archive's store does not do what is asked, and is asked again; what it has not taken"
        " stays on this disk: the store does not answer"
    ]
    assert caplog.messages == told
    uploader._outcomes = iter([None, None, away])
    run(uploader)
    assert uploader.failures == len(pauses_s) == 4
    assert caplog.messages == [*told, "the archive's store answers again", *told]


def test_a_segment_that_expires_waits_for_no_move_any_more() -> None:
    uploader = Trying([])
    for base, size_bytes in ((0, 100), (10, 30)):
        row = ArchiveRow("t", 0, "messages", base, base + 10, 1000, size_bytes, 1, 1, 9, 4)
        uploader.add(row, uploader._root / f"{base}.log.zst")
    assert uploader.waiting_bytes == 130
    uploader.expire(row, uploader._root / "10.log.zst")
    assert uploader.waiting_bytes == 100
