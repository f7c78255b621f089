"""The clock by which a consume loop judges how old a lease is, as a test moves it."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from goq.client._sync.consume import consumer


def move_ahead(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let so much time pass for the loops of blocking clients."""
    moved = SimpleNamespace(monotonic=lambda: time.monotonic() + seconds)
    monkeypatch.setattr(consumer, "time", moved)
