"""Keys that a group has in hand: who of a key may be handed out, and who is held back behind it.

A key is *in hand* while a message of it is leased or waits for a retry. A fresh message of such a
key is held back, in order, until the key is free; of those of a lane that wait for a retry only
the first may go. So one key is never with two consumers at once, and the messages of each key and
lane go out in order. Lanes do not wait for each other: a message of high priority is not stuck
behind one of low priority that has its key and is not out.

Nothing here is written down: what is held back is simply not taken yet, and a group that starts
anew meets it again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple


class MessageAttributes(NamedTuple):
    """What matters about one message: the hash of its key (0 for none), its lane and tenant.

    A lane of -1 is the topic's default lane, a tenant of 0 none.
    """

    key: int
    lane: int
    tenant: int


class HeldMessage(NamedTuple):
    """A fresh message that is held back behind its key; ``expires_ms`` 0 for never."""

    offset: int
    fact: MessageAttributes
    expires_ms: int


class KeyLocks:
    """The keys of one group in one partition."""

    __slots__ = ("_freed", "_held", "_leased", "_waiting", "held_count")

    def __init__(self) -> None:
        self._leased: dict[int, int] = {}
        self._waiting: dict[int, dict[int, list[int]]] = {}  # key, then lane
        self._held: dict[int, dict[int, deque[HeldMessage]]] = {}  # key, then lane
        self._freed: dict[int, dict[int, None]] = {}  # lane, then keys in order
        self.held_count = 0

    def is_in_hand(self, key: int) -> bool:
        """Whether a message of the key is out, or waits to be again."""
        return key in self._leased or key in self._waiting

    def is_leased(self, key: int) -> bool:
        """Whether a message of the key is with a consumer."""
        return key in self._leased

    def is_behind(self, fact: MessageAttributes) -> bool:
        """Whether a fresh message has to be held back behind others of its key.

        What was chosen and is not leased yet does not matter: it goes to the same consumer.
        """
        return self.is_in_hand(fact.key) or fact.lane in self._held.get(fact.key, ())

    def waiting(self, key: int, lane: int) -> list[int]:
        """Return the offsets of the key that wait for a retry in the lane, in order."""
        return self._waiting.get(key, {}).get(lane, [])

    def all_waiting(self, key: int) -> list[int]:
        """Return the offsets of the key that wait for a retry in any lane."""
        return [offset for offsets in self._waiting.get(key, {}).values() for offset in offsets]

    def lease(self, key: int) -> None:
        """Note that a message of the key went to a consumer."""
        self._leased[key] = self._leased.get(key, 0) + 1

    def end_lease(self, key: int) -> bool:
        """Note that a consumer let go of a message of the key; return whether it has no other."""
        left = self._leased[key] - 1
        if left:
            self._leased[key] = left
            return False
        del self._leased[key]
        self.free(key)
        return True

    def wait(self, key: int, lane: int, offset: int) -> None:
        """Note that a message of the key waits for a retry; call it before the lease's end."""
        insort(self._waiting.setdefault(key, {}).setdefault(lane, []), offset)

    def end_wait(self, key: int, lane: int, offset: int) -> None:
        """Note that it waits no more."""
        lanes = self._waiting[key]
        offsets = lanes[lane]
        del offsets[bisect_left(offsets, offset)]
        if not offsets:
            del lanes[lane]
        if not lanes:
            del self._waiting[key]
            self.free(key)

    def held(self) -> Iterator[HeldMessage]:
        """Yield what is held back, in no order."""
        for lanes in self._held.values():
            for waiting in lanes.values():
                yield from waiting

    def hold(self, held: HeldMessage) -> None:
        """Hold a fresh message back, behind those of its key and lane that are."""
        self._lane_of(held).append(held)
        self.held_count += 1

    def put_back(self, held: HeldMessage) -> None:
        """Hold a message back that was taken and could not be handed out: it is the next again."""
        self._lane_of(held).appendleft(held)
        self.held_count += 1

    def drop_held(self) -> None:
        """Forget what is held back: it will be met again."""
        self._held.clear()
        self._freed.clear()
        self.held_count = 0

    def free(self, key: int) -> None:
        """Let those held behind the key go, if nothing has it in hand."""
        if self._is_free(key):
            for lane in self._held[key]:
                self._freed.setdefault(lane, {})[key] = None

    def is_for(self, key: int, tenant: int) -> bool:
        """Whether a message of the tenant is the first of a lane behind a key that is free."""
        lanes = self._held[key].values() if self._is_free(key) else ()
        return any(queue[0].fact.tenant == tenant for queue in lanes)

    def freed_lanes(self) -> list[int]:
        """Return the lanes in which messages are held back behind a key that is free."""
        return [lane for lane in list(self._freed) if self._next_freed(lane) is not None]

    def pop_freed(self, lane: int) -> HeldMessage | None:
        """Take the first message of the key in the lane that has been free for longest.

        The others of the key are :meth:`pop_next`'s, or come when it is free again.
        """
        key = self._next_freed(lane)
        if key is None:
            return None
        del self._freed[lane][key]
        return self.pop_next(key, lane)

    def pop_next(self, key: int, lane: int) -> HeldMessage | None:
        """Take the next held message of a key that is free, or is being handed out."""
        lanes = self._held.get(key, {})
        if lane not in lanes:
            return None
        held = lanes[lane].popleft()
        self.held_count -= 1
        if not lanes[lane]:
            del lanes[lane]
        if not lanes:
            del self._held[key]
        return held

    def _lane_of(self, held: HeldMessage) -> deque[HeldMessage]:
        return self._held.setdefault(held.fact.key, {}).setdefault(held.fact.lane, deque())

    def _next_freed(self, lane: int) -> int | None:
        keys = self._freed.get(lane, {})
        while keys:
            key = next(iter(keys))
            if self._is_free(key) and lane in self._held[key]:
                return key
            del keys[key]
        self._freed.pop(lane, None)
        return None

    def _is_free(self, key: int) -> bool:
        return key in self._held and not self.is_in_hand(key)
