"""The locked keys of one group: they keep each key in order and with one consumer at a time.

A key is *locked* while a message of it is leased or waits for a retry. A fresh message of such a
key is held back, in order, until the key is unlocked. Of the messages of a key and lane that wait
for a retry only the first may be delivered. So one key is never with two consumers at once, and the
messages of each key, lane and tenant are delivered in order. Tenants that use the same key take
turns with it: only an index of all waiting keys would tell which of their messages is the first.
Lanes do not wait for each other: a message of high priority never waits behind a held message of
low priority with the same key.

Nothing here is stored: a held message simply is not taken yet, and a group that starts over finds
it again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple


class MessageAttributes(NamedTuple):
    """The attributes of a message that delivery needs: the hash of its key, its lane, its tenant.

    Key 0 is no key, lane -1 the topic's default lane, tenant 0 no tenant.
    """

    key: int
    lane: int
    tenant: int


class HeldMessage(NamedTuple):
    """A fresh message that is held back behind its key; ``expires_ms`` 0 for never."""

    offset: int
    attributes: MessageAttributes
    expires_ms: int


class KeyLocks:
    """The keys of one group in one partition."""

    __slots__ = ("_by_offset", "_free", "_held", "_leased", "_retries", "held_count")

    def __init__(self) -> None:
        self._leased: dict[int, int] = {}  # messages by key
        self._retries: dict[int, dict[int, list[int]]] = {}  # offsets by key, then lane
        self._held: dict[int, dict[int, deque[HeldMessage]]] = {}  # by key, then lane
        self._by_offset: dict[int, HeldMessage] = {}  # without those that are only stale entries
        self._free: dict[int, dict[int, None]] = {}  # keys in order, by lane
        self.held_count = 0
        """The entries of held messages, stale ones included: what the limit is about."""

    @property
    def blocked_count(self) -> int:
        """The number of messages that are held back."""
        return len(self._by_offset)

    def is_locked(self, key: int) -> bool:
        """Return whether a message of the key is leased or waits for a retry."""
        return key in self._leased or key in self._retries

    def is_leased(self, key: int) -> bool:
        """Return whether a message of the key is leased."""
        return key in self._leased

    def must_wait(self, attributes: MessageAttributes) -> bool:
        """Return whether a fresh message has to be held back behind others of its key.

        Messages that are chosen but not leased yet do not count: the same consumer gets them.
        """
        key = attributes.key
        return self.is_locked(key) or attributes.lane in self._held.get(key, ())

    def retries(self, key: int, lane: int) -> list[int]:
        """Return the offsets of the key that wait for a retry in the lane, in order."""
        return self._retries.get(key, {}).get(lane, [])

    def all_retries(self, key: int) -> list[int]:
        """Return the offsets of the key that wait for a retry in any lane."""
        return [offset for offsets in self._retries.get(key, {}).values() for offset in offsets]

    def add_leases(self, keys: Iterable[int]) -> None:
        """Count a message of each key as leased; 0 is no key."""
        leased = self._leased
        for key in keys:
            if key:
                leased[key] = leased.get(key, 0) + 1

    def remove_lease(self, key: int) -> bool:
        """Count a message of the key as no longer leased; return whether it was the last."""
        left = self._leased[key] - 1
        if left:
            self._leased[key] = left
            return False
        del self._leased[key]
        if key in self._held:
            self.unlock(key)
        return True

    def add_retry(self, key: int, lane: int, offset: int) -> None:
        """Add a message that waits for a retry; call it before :meth:`remove_lease`."""
        insort(self._retries.setdefault(key, {}).setdefault(lane, []), offset)

    def remove_retry(self, key: int, lane: int, offset: int) -> None:
        """Remove a message that waits for a retry."""
        lanes = self._retries[key]
        offsets = lanes[lane]
        del offsets[bisect_left(offsets, offset)]
        if not offsets:
            del lanes[lane]
        if not lanes:
            del self._retries[key]
            self.unlock(key)

    def held_at(self, offset: int) -> HeldMessage | None:
        """Return the held message at an offset."""
        return self._by_offset.get(offset)

    def held_within(self, start: int, end: int) -> list[HeldMessage]:
        """Return the held messages from offset ``start`` up to ``end``, in order."""
        held = self._by_offset
        if end - start < len(held):
            return [held[offset] for offset in range(start, end) if offset in held]
        return [held[offset] for offset in sorted(held) if start <= offset < end]

    def hold(self, message: HeldMessage) -> None:
        """Hold a fresh message back, behind the held messages of its key and lane."""
        self._queue_of(message).append(message)
        self._by_offset[message.offset] = message
        self.held_count += 1

    def put_back(self, message: HeldMessage) -> None:
        """Hold a message again that was popped and could not be delivered: it stays the next."""
        self._queue_of(message).appendleft(message)
        self._by_offset.setdefault(message.offset, message)
        self.held_count += 1

    def forget(self, start: int, end: int) -> None:
        """Count no message from ``start`` up to ``end`` as held: another event decided about them.

        Their entries are stale: they stay until they are popped, and the receive passes over them.
        """
        held = self._by_offset
        if not held:
            return
        if end - start < len(held):
            for offset in range(start, end):
                held.pop(offset, None)
        else:
            for offset in [offset for offset in held if start <= offset < end]:
                del held[offset]

    def take_held(self) -> list[dict[Any, Any]]:
        """Remove all held messages: the group will find them again. Return what held them."""
        held: list[dict[Any, Any]] = [self._by_offset, self._held]
        self._by_offset, self._held = {}, {}
        self._free.clear()
        self.held_count = 0
        return held

    def containers(self) -> list[dict[Any, Any]]:
        """Return what holds the messages."""
        return [self._by_offset, self._held, self._leased, self._retries]

    def unlock(self, key: int) -> None:
        """Release the messages held behind the key, unless it is still locked."""
        if self._is_free(key):
            for lane in self._held[key]:
                self._free.setdefault(lane, {})[key] = None

    def is_next_of_tenant(self, key: int, tenant: int) -> bool:
        """Return whether a tenant's message is the first of a lane behind an unlocked key."""
        lanes = self._held[key].values() if self._is_free(key) else ()
        return any(queue[0].attributes.tenant == tenant for queue in lanes)

    def free_lanes(self) -> list[int]:
        """Return the lanes that have held messages of an unlocked key."""
        return [lane for lane in list(self._free) if self._next_free(lane) is not None]

    def pop_free(self, lane: int) -> HeldMessage | None:
        """Remove and return the first message of the lane's key that was unlocked first.

        :meth:`pop_next` returns the others of the key; otherwise they wait for the next unlock.
        """
        key = self._next_free(lane)
        if key is None:
            return None
        del self._free[lane][key]
        return self.pop_next(key, lane)

    def pop_next(self, key: int, lane: int) -> HeldMessage | None:
        """Remove and return the next held message of a key that is unlocked or being delivered."""
        lanes = self._held.get(key, {})
        if lane not in lanes:
            return None
        message = lanes[lane].popleft()
        if self._by_offset.get(message.offset) == message:  # else it was moved meanwhile
            del self._by_offset[message.offset]
        self.held_count -= 1
        if not lanes[lane]:
            del lanes[lane]
        if not lanes:
            del self._held[key]
        return message

    def _queue_of(self, message: HeldMessage) -> deque[HeldMessage]:
        attributes = message.attributes
        return self._held.setdefault(attributes.key, {}).setdefault(attributes.lane, deque())

    def _next_free(self, lane: int) -> int | None:
        keys = self._free.get(lane, {})
        while keys:
            key = next(iter(keys))
            if self._is_free(key) and lane in self._held[key]:
                return key
            del keys[key]
        self._free.pop(lane, None)
        return None

    def _is_free(self, key: int) -> bool:
        return key in self._held and not self.is_locked(key)
