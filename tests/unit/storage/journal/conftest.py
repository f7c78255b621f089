from __future__ import annotations

import pytest

from goq import limits


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOURNAL_PIECE_BYTES_MIN", 4000)
    monkeypatch.setattr(limits, "JOURNAL_PIECE_BYTES_MAX", 4000)
    monkeypatch.setattr(limits, "JOURNAL_PIECES_MAX", 3)
