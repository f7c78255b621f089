"""What clients did and were told, and what is wrong with it.

Values are never sent twice, so a message is known by its value. A copy that a redrive made of it is
known by its value and its number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from goq.model import Message
from tests.sim.environment.world import World

_EARLY_S_MAX = 0.21
"""By how much a lease may end early at another leader, with what clocks drift in its time."""


def name_of(message: Message) -> bytes:
    """Return what a message is known by: its value, and behind ``^`` its redrives, if any."""
    redrives = dict(message.headers).get("goq-redrives")
    return (message.value or b"") + (b"" if redrives is None else b"^" + redrives)


def sent_value(name: bytes) -> bytes:
    """Return the value that was sent of a message."""
    return name.partition(b"^")[0]


class Books:
    """Of one topic and one group."""

    def __init__(self, world: World) -> None:
        self.sent: dict[bytes, tuple[bytes, int]] = {}
        """Key and time of delivery in ms, 0 for at once, by value."""
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        """Partition and offset by value."""
        self.delivered: Counter[bytes] = Counter()
        self.acked_s: dict[bytes, float] = {}
        """When an ack was acknowledged, by value."""
        self.rejected_s: dict[bytes, float] = {}
        """When a reject was acknowledged, by value."""
        self._world = world
        self._shown: dict[tuple[int, int], bytes] = {}
        self._leased_s: dict[bytes, float] = {}
        self._last_of_key: dict[bytes, int] = {}

    def send(self, value: bytes, key: bytes, deliver_at_ms: int) -> None:
        self.sent[value] = key, deliver_at_ms

    def stored(self, value: bytes, partition: int, offset: int) -> None:
        """Note that a publish was acknowledged."""
        self.acknowledged[value] = partition, offset
        self.show(value, partition, offset)

    def show(self, value: bytes, partition: int, offset: int) -> None:
        """Note which message a client was told to be at an offset."""
        before = self._shown.setdefault((partition, offset), value)
        if before != value:
            self._world.fail(f"{partition}:{offset} was {before!r}, and is {value!r}")

    def acked(self, values: list[bytes]) -> None:
        """Note that the acks of messages were acknowledged."""
        for value in values:
            self.acked_s.setdefault(value, self._world.loop.time())

    def rejected(self, values: list[bytes]) -> None:
        """Note that the rejects of messages were acknowledged: each is a dead letter."""
        for value in values:
            self.rejected_s.setdefault(value, self._world.loop.time())

    def deliver(
        self,
        value: bytes,
        partition: int,
        offset: int,
        *,
        asked_s: float,
        latest_ms: int,
        lease_s: float,
        is_exclusive: Callable[[float], bool],
    ) -> None:
        """Note that a message was handed over, leased for so long.

        ``latest_ms`` is the latest time by any clock: a message that has come due at one leader is
        due at the next. ``is_exclusive`` returns whether leases since a time have their length. A
        receive that was asked for before the ack was acknowledged may be answered after it, and
        before another that was asked for later.
        """
        fail = self._world.fail
        if sent_value(value) not in self.sent:
            fail(f"{partition}:{offset} holds {value!r}, which was never sent")
            return
        self.show(value, partition, offset)
        for settled, settled_s in (("ack", self.acked_s), ("reject", self.rejected_s)):
            if settled_s.get(value, asked_s) < asked_s:
                fail(f"{value!r} came again after its {settled} was acknowledged")
        before_s, now_s = self._leased_s.get(value, -lease_s), self._world.loop.time()
        self._leased_s[value] = max(before_s, asked_s)
        is_early = asked_s >= before_s and now_s < before_s + lease_s - _EARLY_S_MAX
        if is_early and is_exclusive(before_s):
            fail(f"{value!r} came again {now_s - before_s:.3f} s after it was asked for")
        key, deliver_at_ms = self.sent[sent_value(value)]
        if deliver_at_ms > latest_ms:
            fail(f"{value!r} came {deliver_at_ms - latest_ms} ms early")
        self.delivered[value] += 1
        if self.delivered[value] == 1 and not deliver_at_ms:
            last = self._last_of_key.get(key, -1)
            if offset < last:
                fail(f"{value!r} of key {key!r} at {offset} came first after {last}")
            self._last_of_key[key] = offset

    @property
    def shown(self) -> dict[tuple[int, int], bytes]:
        """What clients were told to be where."""
        return self._shown
