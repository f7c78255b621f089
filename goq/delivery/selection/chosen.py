"""What one receive has chosen so far, and what it had to know of the messages for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from goq.delivery.events.event import Cause, Range, Span
from goq.delivery.group.key_locks import Fact


class Facts(NamedTuple):
    """What is known of the messages from the offset asked for up to ``end``; None for nothing.

    ``keys`` holds hashes, 0 for none; ``expires_ms`` 0 for never; ``groups`` the one group that a
    message is for, None for all. Messages that are not readable are damaged and passed over. With
    ``is_gone`` they were compacted away: all up to ``end``, maybe further than was asked.
    """

    end: int
    is_readable: bool = True
    keys: Sequence[int] | None = None
    expires_ms: Sequence[int] | None = None
    groups: Sequence[str | None] | None = None
    is_gone: bool = False


FactsOf = Callable[[int, int], Facts | None]
"""Facts from one offset on, at most up to another; None where the receive has enough."""


class Chosen:
    """Messages that are about to be leased, and those that are done without having been."""

    def __init__(self, facts_of: FactsOf) -> None:
        self.spans: list[Span] = []
        self.facts: dict[int, Fact] = {}
        self.skipped: dict[Cause, list[Range]] = {}
        self.is_full = False
        """Whether the receive has enough, whatever was asked for."""
        self.seen: set[int] = set()
        """What was chosen or skipped of the messages that may stand in a queue twice."""
        self._facts_of = facts_of
        self._tenants: dict[int, int] = {}

    def facts_of(self, start: int, end: int) -> Facts | None:
        """Return facts, or None when the receive is full."""
        facts = self._facts_of(start, end)
        self.is_full |= facts is None
        return facts

    def choose(self, start: int, end: int, attempt: int) -> None:
        """Choose messages."""
        if self.spans:
            first, last, known = self.spans[-1]
            if last == start and known == attempt:
                self.spans[-1] = (first, end, attempt)
                return
        self.spans.append((start, end, attempt))

    def skip(self, offset: int, cause: Cause, *, end: int | None = None) -> None:
        """Count a message as done, or all from it up to ``end``."""
        end = offset + 1 if end is None else end
        ranges = self.skipped.setdefault(cause, [])
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((offset, end))

    def count_tenant(self, tenant: int, count: int) -> None:
        """Count messages of a tenant as out."""
        if tenant:
            self._tenants[tenant] = self._tenants.get(tenant, 0) + count

    def of_tenant(self, tenant: int) -> int:
        """Return how many messages of a tenant were chosen."""
        return self._tenants.get(tenant, 0)
