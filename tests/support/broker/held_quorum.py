"""A quorum that a test gives by hand."""

from __future__ import annotations

from collections.abc import Callable

from goq.errors import GoqError
from goq.storage.log.segment import WriteBatch


class HeldQuorum:
    """Nothing is safe before the test says so."""

    def __init__(self) -> None:
        self.appended_to = 0
        self.refusal: GoqError | None = None
        self.is_sure = True
        self.takes_offers = False
        self.offered: list[tuple[int, int]] = []
        self.kept: list[tuple[int, int]] = []
        self._doubts: list[Callable[[], None]] = []
        self._advance: Callable[[int], None] = lambda _offset: None

    def follow(self, advance: Callable[[int], None]) -> None:
        self._advance = advance

    def check(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def check_leads(self) -> None:
        pass

    def offer(self, batch: WriteBatch) -> bool:
        if self.takes_offers:
            self.offered.append((batch.start_offset, batch.end_offset))
        return self.takes_offers

    def keep(self, batch: WriteBatch) -> None:
        self.kept.append((batch.start_offset, batch.end_offset))

    def appended(self, end_offset: int) -> None:
        self.appended_to = end_offset

    def holders(self, _offset: int) -> tuple[str, ...]:
        return ()

    def copied_to(self) -> int:
        return 2**62

    def confirm(self, then: Callable[[], None]) -> None:
        if self.is_sure:
            then()
        else:
            self._doubts.append(then)

    def be_sure(self) -> None:
        """Say that nobody else leads."""
        for then in self._doubts:
            then()

    def reach(self, high_watermark: int) -> None:
        """Say how far other nodes have the log."""
        self._advance(high_watermark)

    def reach_end(self) -> None:
        """Say that other nodes have all that the leader has."""
        self._advance(self.appended_to)
