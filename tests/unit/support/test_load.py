"""A load tells of its own threads that fail, before it judges the node."""

from __future__ import annotations

import pytest

from tests.support.ledger.load import Load


@pytest.mark.parametrize("threads", ["_producers", "_consumers"])
def test_the_error_of_a_thread_is_raised_before_the_ledger_is_checked(
    monkeypatch: pytest.MonkeyPatch, threads: str
) -> None:
    """The ledger does not have what the thread did last: a check of it blames the node."""

    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tests.support.ledger.load.is_drained", lambda *_: True)
    monkeypatch.setattr("tests.support.ledger.load.read_log", lambda *_: pytest.fail("checked"))
    load = Load("http://127.0.0.1:1", seed=1, partitions=1)
    getattr(load, threads).append(load._thread(fail))
    with pytest.raises(ZeroDivisionError):
        load.finish_and_check()
