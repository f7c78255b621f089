"""What a group must be able to do to be offered messages by turns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Source(Protocol):
    """The group: what it has outstanding, and what it makes of the messages it is offered."""

    def waiting_lanes(self) -> Iterable[int]:
        """Return the lanes that have due retries or released messages now."""

    def take_waiting(self, lane: int, messages_max: int) -> int:
        """Hand over such messages; return how many. Fewer than asked: there are no more now."""

    def take_fresh(
        self, lane: int, tenant: int, start: int, end: int, messages_max: int
    ) -> tuple[int, int]:
        """Hand over of ``[start, end)`` what may be; return how many, and up to where.

        Everything before the offset returned is handed over or never to be offered again (taken,
        gone, or held back and released later). It is ``end`` unless ``messages_max`` was reached
        or the source is full.
        """

    def is_full(self) -> bool:
        """Return whether this call can take no more: its bytes are spent, data is missing."""

    def in_flight(self, tenant: int) -> int:
        """Return how many messages of a tenant are out; asked only if there is a cap."""
