"""What each stream of a topic has in flight, so that it is given no more than its credit.

A message is in flight from when it is handed over until it is acknowledged, given back, or its
lease has ended: the partition tells of each by :meth:`StreamCredits.on_settled`. So a stream costs
nothing while nothing of it is settled, and settling costs a lookup where no stream holds the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from goq.delivery.events.event import Span

Key = tuple[int, int]
"""A lease: the number of its partition, and its token."""


class CreditAccount:
    """The credit of one stream, and the leases that use it."""

    __slots__ = ("_changed", "_left", "credit", "in_flight", "spans")

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.in_flight = 0
        self.spans: dict[Key, Sequence[Span]] = {}
        self._left: dict[Key, int] = {}
        self._changed: asyncio.Future[None] | None = None

    @property
    def room(self) -> int:
        """How many messages more may be in flight."""
        return self.credit - self.in_flight

    def grant(self, credit: int) -> None:
        """Change the credit; with less than is in flight, nothing flows until that is settled."""
        self.credit = credit
        self.wake()

    def add(self, key: Key, spans: Sequence[Span], count: int) -> None:
        """Note a lease of which ``count`` messages are in flight."""
        self.spans[key] = spans
        self._left[key] = count
        self.in_flight += count

    def reduce(self, key: Key, left: int) -> bool:
        """Note that ``left`` messages of a lease are still in flight; return whether any are."""
        self.in_flight -= self._left[key] - left
        self._left[key] = left
        if not left:
            del self._left[key], self.spans[key]
        self.wake()
        return left > 0

    def left(self, key: Key) -> int:
        """Return how many messages of a lease are in flight."""
        return self._left[key]

    async def changed(self) -> None:
        """Return when something was settled, or whatever else a stream should look at."""
        self._changed = asyncio.get_running_loop().create_future()
        try:
            await self._changed
        finally:
            self._changed = None

    def wake(self) -> None:
        """Let the stream that waits in :meth:`changed` look."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


class StreamCredits:
    """The accounts of a topic's streams, by the leases that they hold.

    ``count_held`` tells how many messages of a lease are left, from the state of its partition.
    """

    def __init__(self, count_held: Callable[[str, int, int], int]) -> None:
        self._count_held = count_held
        self._accounts: set[CreditAccount] = set()
        self.owners: dict[Key, tuple[str, CreditAccount]] = {}

    def opened(self, account: CreditAccount) -> None:
        """Take up an account."""
        self._accounts.add(account)

    def leased(self, group: str, account: CreditAccount, key: Key, spans: Sequence[Span]) -> None:
        """Charge an account with a lease that was handed over, for what is not settled yet."""
        count = self._count_held(group, *key)
        if count:
            account.add(key, spans, count)
            self.owners[key] = group, account

    def on_settled(self, partition: int, token: int | None, count: int) -> None:
        """Give back credit for ``count`` messages that have left a lease, in whatever way.

        Without a token, any lease of the partition may have lost messages (a reset, a deletion, a
        rebuilt state): then all are counted anew.
        """
        if token is None:
            self._count_anew(partition)
            return
        key = partition, token
        owner = self.owners.get(key)
        if owner is not None:
            _, account = owner
            self._reduce(key, account, max(0, account.left(key) - count))

    def closed(self, account: CreditAccount) -> None:
        """Forget an account."""
        self._accounts.discard(account)
        for key in account.spans:
            del self.owners[key]

    def wake_all(self) -> None:
        """Let every stream look: the topic is going away."""
        for account in self._accounts:
            account.wake()

    def _count_anew(self, partition: int) -> None:
        for key, (group, account) in list(self.owners.items()):
            if key[0] == partition:
                self._reduce(key, account, self._count_held(group, *key))

    def _reduce(self, key: Key, account: CreditAccount, left: int) -> None:
        if not account.reduce(key, left):
            del self.owners[key]
