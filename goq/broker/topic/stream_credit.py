"""Credit accounting of push streams: the messages in flight of each stream of a topic.

A message is in flight from its delivery until it is acknowledged, returned, or its lease ends. The
partition reports each of these to :meth:`StreamCredits.on_settled`. A stream costs nothing between
settlements. A settlement of a lease that no stream holds costs one lookup.

The credit of an expired lease comes back with the next sign of life of the consumer: a settlement
of a message of the stream, lost or not, an extension, a heartbeat, or more credit. Until then the
stream is *silent*. So a consumer that hangs gets no more messages than its credit.

A partition that another node leads now returns all its credit: its settlements go there. Its leases
are remembered, to be ended there when the stream closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from goq import limits
from goq.delivery.events.event import Span

Key = tuple[int, int]
"""A lease: the number of its partition, and its token."""


class CreditAccount:
    """The credit of one stream, and the leases that use it."""

    __slots__ = (
        "_changed",
        "_left",
        "consumer",
        "credit",
        "expired",
        "expired_count",
        "group",
        "in_flight",
        "moved",
        "spans",
    )

    def __init__(self, credit: int, group: str = "", consumer: str = "") -> None:
        self.credit = credit
        self.group = group
        self.consumer = consumer
        self.in_flight = 0
        self.expired: dict[Key, int] = {}
        """The number of messages that expired since the last sign of life, by their leases."""
        self.expired_count = 0
        self.spans: dict[Key, Sequence[Span]] = {}
        self.moved: dict[Key, None] = {}
        """The latest leases that may go on at other nodes, which lead their partitions by now."""
        self._left: dict[Key, int] = {}
        self._changed: asyncio.Future[None] | None = None

    @property
    def room(self) -> int:
        """The number of messages that may be delivered now; negative over the credit."""
        return self.credit - self.in_flight - self.expired_count

    def grant(self, credit: int) -> None:
        """Set the credit; the stream pauses while more messages than that are in flight."""
        self.credit = credit
        self.wake()

    def add(self, key: Key, spans: Sequence[Span], count: int) -> None:
        """Add a lease with ``count`` messages in flight."""
        self.spans[key] = spans
        self._left[key] = count
        self.in_flight += count

    def reduce(self, key: Key, left: int) -> bool:
        """Set the messages in flight of a lease to ``left``; return whether any are left."""
        self.in_flight -= self._left[key] - left
        self._left[key] = left
        if not left:
            del self._left[key], self.spans[key]
        self.wake()
        return left > 0

    def note_moved(self, key: Key) -> None:
        """Remember a lease that another node keeps from now on."""
        self.moved[key] = None
        if len(self.moved) > limits.STREAM_MOVED_LEASES_MAX:
            del self.moved[next(iter(self.moved))]

    def expire(self, key: Key, count: int) -> None:
        """Keep the credit of messages whose lease expired."""
        self.expired[key] = self.expired.get(key, 0) + count
        self.expired_count += count

    def forget_expired(self, key: Key) -> None:
        """Return the credit of an expired lease, of which no sign of life can be seen here."""
        self.expired_count -= self.expired.pop(key)
        self.wake()

    def revive(self) -> None:
        """Return the credit of expired leases: the consumer has shown life."""
        self.expired.clear()
        self.expired_count = 0
        self.wake()

    def left(self, key: Key) -> int:
        """Return the number of messages in flight of a lease."""
        return self._left[key]

    async def changed(self) -> None:
        """Wait for the next :meth:`wake`: a settlement, a new credit, or the topic's close."""
        self._changed = asyncio.get_running_loop().create_future()
        try:
            await self._changed
        finally:
            self._changed = None

    def wake(self) -> None:
        """Wake the stream that waits in :meth:`changed`."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


class StreamCredits:
    """The accounts of a topic's streams, by their leases.

    ``count_held`` returns the number of unsettled messages of a lease, by its partition's state, or
    None where another node leads the partition.
    """

    def __init__(self, count_held: Callable[[str, int, int], int | None]) -> None:
        self._count_held = count_held
        self._accounts: set[CreditAccount] = set()
        self.owners: dict[Key, tuple[str, CreditAccount]] = {}
        self.expired: dict[Key, CreditAccount] = {}
        """The silent accounts, by the leases that expired."""

    def opened(self, account: CreditAccount) -> None:
        """Add the account of a new stream."""
        self._accounts.add(account)

    def leased(self, group: str, account: CreditAccount, key: Key, spans: Sequence[Span]) -> None:
        """Charge an account with a delivered lease.

        What has left the lease already, as it ran out before it was durable, counts as expired:
        else a consumer that hangs would get more than its credit from a node that is slow.
        """
        count = self._count_held(group, *key)
        if count is None:
            account.note_moved(key)
            return
        if count:
            account.add(key, spans, count)
            self.owners[key] = group, account
        over = sum(end - start for start, end, _ in spans) - count
        if over:
            account.expire(key, over)
            self.expired[key] = account

    def on_settled(
        self, partition: int, token: int | None, count: int, has_expired: bool = False
    ) -> None:
        """Return the credit of ``count`` messages that left a lease, unless it ``has_expired``.

        Without a token any lease of the partition may have lost messages (by a reset, a deletion, a
        rebuilt state). Then the messages of all its leases are counted again.
        """
        if token is None:
            self._count_anew(partition)
            return
        key = partition, token
        owner = self.owners.get(key)
        if owner is not None:
            _, account = owner
            count = min(count, account.left(key))
            if has_expired and count:
                account.expire(key, count)
                self.expired[key] = account
            self._reduce(key, account, account.left(key) - count)

    def on_life(self, keys: Iterable[Key]) -> set[str]:
        """Return expired credit to the streams of these leases; return the groups of any."""
        accounts = set()
        for key in keys:
            owner = self.owners.get(key)
            account = self.expired.get(key) if owner is None else owner[1]
            if account is not None:
                accounts.add(account)
        return self._revive(accounts)

    def on_heartbeat(self, group: str, consumer: str) -> set[str]:
        """Return expired credit to the streams of a consumer; return as :meth:`on_life` does."""
        silent = set(self.expired.values())
        return self._revive({a for a in silent if (a.group, a.consumer) == (group, consumer)})

    def on_grant(self, account: CreditAccount) -> set[str]:
        """Return expired credit to a stream; return as :meth:`on_life` does."""
        return self._revive({account})

    def on_resigned(self, partition: int) -> set[str]:
        """Return all credit of a partition's leases; return the groups of any that expired.

        Another node leads the partition: it hears of what is settled, and this one does not.
        """
        for key, (_, account) in list(self.owners.items()):
            if key[0] == partition:
                self._reduce(key, account, 0)
                account.note_moved(key)
        silent = {key: account for key, account in self.expired.items() if key[0] == partition}
        for key, account in silent.items():
            del self.expired[key]
            account.forget_expired(key)
        return {account.group for account in silent.values()}

    def _revive(self, accounts: set[CreditAccount]) -> set[str]:
        silent = [account for account in accounts if account.expired]
        for account in silent:
            for key in account.expired:
                del self.expired[key]
            account.revive()
        return {account.group for account in silent}

    def closed(self, account: CreditAccount) -> None:
        """Remove the account of a closed stream."""
        self._accounts.discard(account)
        for key in account.spans:
            del self.owners[key]
        for key in account.expired:
            del self.expired[key]

    def wake_all(self) -> None:
        """Wake every stream: the topic closes."""
        for account in self._accounts:
            account.wake()

    def _count_anew(self, partition: int) -> None:
        for key, (group, account) in list(self.owners.items()):
            if key[0] == partition:
                self._reduce(key, account, self._count_held(group, *key) or 0)

    def _reduce(self, key: Key, account: CreditAccount, left: int) -> None:
        if not account.reduce(key, left):
            del self.owners[key]
