"""Keys that a group has in hand: who of a key may be handed out, and who is held back behind it.

A key is *in hand* while a message of it is leased or waits for a retry. A fresh message of such a
key is held back, in order, until the key is free; of those that wait for a retry only the first
may go. So one key is never with two consumers at once, and each key's messages go out in order.

Nothing here is written down: what is held back is simply not taken yet, and a group that starts
anew meets it again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple


class Fact(NamedTuple):
    """What matters about one message: the hash of its key (0 for none), its lane and tenant.

    A lane of -1 is the topic's default lane, a tenant of 0 none.
    """

    key: int
    lane: int
    tenant: int


class Held(NamedTuple):
    """A fresh message that is held back behind its key; ``expires_ms`` 0 for never."""

    offset: int
    fact: Fact
    expires_ms: int


class KeyLocks:
    """The keys of one group in one partition."""

    __slots__ = ("_freed", "_held", "_leased", "_waiting", "held_count")

    def __init__(self) -> None:
        self._leased: dict[int, int] = {}
        self._waiting: dict[int, list[int]] = {}
        self._held: dict[int, deque[Held]] = {}
        self._freed: dict[int, dict[int, None]] = {}  # lane, then keys in order
        self.held_count = 0

    def is_in_hand(self, key: int) -> bool:
        """Whether a fresh message of the key has to be held back."""
        return key in self._leased or key in self._waiting or key in self._held

    def has_held(self, key: int) -> bool:
        """Whether messages of the key are held back."""
        return key in self._held

    def is_leased(self, key: int) -> bool:
        """Whether a message of the key is with a consumer."""
        return key in self._leased

    def waiting(self, key: int) -> list[int]:
        """Return the offsets of the key that wait for a retry, in order."""
        return self._waiting.get(key, [])

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
        self._free(key)
        return True

    def wait(self, key: int, offset: int) -> None:
        """Note that a message of the key waits for a retry; call it before the lease's end."""
        insort(self._waiting.setdefault(key, []), offset)

    def end_wait(self, key: int, offset: int) -> None:
        """Note that it waits no more."""
        offsets = self._waiting[key]
        del offsets[bisect_left(offsets, offset)]
        if not offsets:
            del self._waiting[key]
            self._free(key)

    def held(self) -> Iterator[Held]:
        """Yield what is held back, in no order."""
        for waiting in self._held.values():
            yield from waiting

    def hold(self, held: Held) -> None:
        """Hold a fresh message back, behind those of its key that are."""
        self._held.setdefault(held.fact.key, deque()).append(held)
        self.held_count += 1

    def freed_lanes(self) -> Iterator[int]:
        """Yield the lanes in which messages are held back behind a key that is free."""
        for lane in list(self._freed):
            if self._next_freed(lane) is not None:
                yield lane

    def pop_freed(self, lane: int) -> Held | None:
        """Take the first message of the key in the lane that has been free for longest.

        The others of the key are :meth:`pop_next`'s, or come when it is free again.
        """
        key = self._next_freed(lane)
        if key is None:
            return None
        del self._freed[lane][key]
        return self._pop(key)

    def pop_next(self, key: int, lane: int) -> Held | None:
        """Take the next held message of a key that is free, or is being handed out."""
        if key in self._held and self._held[key][0].fact.lane == lane:
            return self._pop(key)
        return None

    def put_back(self, held: Held) -> None:
        """Hold a message back that was taken and could not be handed out: it is the next again."""
        self._held.setdefault(held.fact.key, deque()).appendleft(held)
        self.held_count += 1
        self._free(held.fact.key)

    def drop_held(self) -> None:
        """Forget what is held back: it will be met again."""
        self._held.clear()
        self._freed.clear()
        self.held_count = 0

    def free(self, key: int) -> None:
        """Let those held behind the key go, if nothing else has it in hand."""
        self._free(key)

    def _pop(self, key: int) -> Held:
        queue = self._held[key]
        held = queue.popleft()
        self.held_count -= 1
        if not queue:
            del self._held[key]
        return held

    def _next_freed(self, lane: int) -> int | None:
        keys = self._freed.get(lane, {})
        while keys:
            key = next(iter(keys))
            if self._is_free(key) and self._held[key][0].fact.lane == lane:
                return key
            del keys[key]
        self._freed.pop(lane, None)
        return None

    def _free(self, key: int) -> None:
        if self._is_free(key):
            self._freed.setdefault(self._held[key][0].fact.lane, {})[key] = None

    def _is_free(self, key: int) -> bool:
        return key in self._held and key not in self._leased and key not in self._waiting
