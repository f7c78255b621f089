from __future__ import annotations

from pathlib import Path

import pytest

from goq import limits
from goq.broker.runtime.metrics import WriteTimes

LOG, OTHER = Path("/data/orders/0/messages"), Path("/data/orders/1/messages")


def test_a_slow_write_is_logged_with_its_log_and_a_fast_one_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = WriteTimes()
    times.note(limits.SLOW_WRITE_S - 0.001, 0, LOG)
    assert caplog.records == []
    times.note(limits.SLOW_WRITE_S, 0, LOG)
    assert caplog.records[0].getMessage() == f"a write to {LOG} took 1.0 s: the disk is slow"
    assert sum(times.counts) == 2


def test_slow_writes_of_all_logs_are_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = WriteTimes()
    for now_s in range(60):
        times.note(2, now_s, LOG)
    times.note(2, 30, OTHER)
    times.note(2, 60, LOG)
    assert [record.getMessage()[-16:] for record in caplog.records] == [
        "the disk is slow",
        "ow (60 more before)"[-16:],
    ]
