from __future__ import annotations

import pytest

from goq import limits


@pytest.fixture
def _small_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of events, and blocks of their index, that a few steps fill."""
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 600)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 2)
    monkeypatch.setattr(limits, "EVENT_INDEX_BLOCK_BYTES", 300)
