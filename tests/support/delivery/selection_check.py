"""What a receive may hand out, must not, and must, by looking at the twin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goq.config.topic import Ordering

if TYPE_CHECKING:
    from tests.support.delivery.pair import Pair


class ChoiceCheck:
    """What was chosen in one receive, before the twin knows of it: offsets and attempts."""

    def __init__(
        self,
        pair: Pair,
        name: str,
        ordering: Ordering,
        flat: list[tuple[int, int]],
        messages_max: int,
    ) -> None:
        self.twin, self.settings, self.now_ms = pair.twin, pair.settings, pair.now_ms
        self.name = name
        self.ordering = ordering
        self.flat = flat
        self.offsets = [offset for offset, _ in flat]
        self.messages_max = messages_max
        self.due = self.twin.due(name, self.now_ms)
        self.retries = self.twin.outstanding(name, "retry")
        self.leased = self.twin.outstanding(name, "leased")

    def allowed(self) -> None:
        """Assert that what was chosen may be handed out, and in this order."""
        assert len(set(self.offsets)) == len(self.offsets) <= self.messages_max
        assert all(self.due.get(o) == attempt for o, attempt in self.flat), (self.flat, self.due)
        cap = self.settings.tenant_in_flight_max
        tenants = [self.twin.messages[o].tenant for o in (*self.offsets, *self.leased)]
        if cap is not None:  # of others more may be leased, since before it was lowered
            chosen = {tenant for tenant in tenants[: len(self.offsets)] if tenant}
            assert all(tenants.count(tenant) <= cap for tenant in chosen), tenants
        for index in range(len(self.offsets)):
            self._in_order(index)

    def complete(self, *, is_whole: bool) -> None:
        """Assert that nothing was left out for something else, or if whole, without reason."""
        wanted = self._wanted()
        has_room = len(self.offsets) < self.messages_max
        if is_whole and self._is_determined():
            if has_room:
                assert set(self.offsets) == set(wanted), (self.offsets, wanted)
            if self.ordering is not Ordering.KEY:
                assert self.offsets == wanted[: self.messages_max]
        certain = self._certain(wanted)
        if is_whole and has_room:
            assert certain <= set(self.offsets), (certain, self.offsets)
        if self.settings.starvation_ms is None:
            for offset in certain - set(self.offsets):
                self._not_passed_over(offset)

    def _in_order(self, index: int) -> None:
        """Nobody else has its key, what is before it in key and lane came or comes before it."""
        twin, offset = self.twin, self.offsets[index]
        message, lane, rank = twin.messages[offset], twin.lane(offset), twin.ranks[offset]
        seen = {*self.offsets[: index + 1]}
        is_keyed = self.ordering is Ordering.KEY and message.key != 0
        if is_keyed:
            assert all(twin.messages[o].key != message.key for o in self.leased)
            waiting = [
                o
                for o in self.retries
                if twin.messages[o].key == message.key
                and o not in seen
                and not twin.is_passed(o, self.now_ms)
            ]
            if offset in self.retries:
                waiting = [o for o in waiting if o < offset and twin.lane(o) == lane]
            assert not waiting, (offset, waiting)
        if offset not in self.retries and rank is not None:
            earlier = [
                twin.ranks[o]
                for o in self.due
                if o not in seen
                and o not in self.retries
                and twin.lane(o) == lane
                and twin.messages[o].tenant == message.tenant
                and (twin.messages[o].key == message.key or self.ordering is not Ordering.KEY)
            ]
            assert all(r is None or r > rank for r in earlier), (offset, earlier)

    def _is_determined(self) -> bool:
        """Whether nothing but readiness and lanes says who is next."""
        offsets = range(self.twin.start, self.twin.end)
        return (
            self.settings.lane_weights is None
            and self.settings.starvation_ms is None
            and not any(self.twin.messages[o].tenant for o in offsets)
            and not any(self.twin.ranks.get(o, 0) is None for o in offsets)
        )

    def _wanted(self) -> list[int]:
        """Return what comes if there is room for all, in order but where keys are kept apart."""
        if self.ordering is Ordering.KEY:
            return self.twin.by_key(self.name, self.now_ms)
        if self.ordering is Ordering.PARTITION:
            return self.twin.in_partition_order(self.name, self.now_ms)
        return self.twin.in_order(self.name, self.now_ms)

    def _certain(self, wanted: list[int]) -> set[int]:
        """Return what has to come if there is room, whosever turn is when."""
        messages, cap = self.twin.messages, self.settings.tenant_in_flight_max
        found = set(wanted)
        if cap is not None:
            if self.ordering is Ordering.PARTITION:
                return set()
            tenants = [messages[o].tenant for o in (*self.leased, *self.due)]
            capped = {tenant for tenant in tenants if tenant and tenants.count(tenant) > cap}
            keys = {m.key for m in messages if m.tenant in capped} - {0}
            found = {o for o in found if messages[o].tenant not in capped}
            found = {o for o in found if messages[o].key not in keys}
        in_turn = self.settings.lane_weights is None and self.settings.starvation_ms is None
        if self.ordering is Ordering.KEY and not in_turn:
            busy = {messages[o].key for o in self.retries} - {0}
            found = {o for o in found if messages[o].key not in busy}
        return found

    def _not_passed_over(self, offset: int) -> None:
        """No lower lane went before it, and if it is a retry, nothing fresh of its lane."""
        lane = self.twin.lane(offset)
        if self.settings.lane_weights is None and self.ordering is not Ordering.PARTITION:
            assert all(self.twin.lane(o) <= lane for o in self.offsets), (offset, self.offsets)
        if offset in self.retries:
            fresh = [o for o in self.offsets if o not in self.retries]
            assert all(self.twin.lane(o) != lane for o in fresh), (offset, self.offsets)
