"""What was passed over because its tenant has as many messages out as it may have.

A retry, or a key with held messages, that comes up while its tenant is at its cap is put aside
here, so that it is not met again at each receive. When a message of the tenant comes back, as many
are taken up again as there is room for then.
"""

from __future__ import annotations

from collections.abc import Callable


class TenantCap:
    """What one group put aside, by tenant, in the order in which it came up."""

    __slots__ = ("_freed", "_keys", "_retries")

    def __init__(self) -> None:
        self._retries: dict[int, dict[int, None]] = {}
        self._keys: dict[int, dict[int, None]] = {}
        self._freed: set[int] = set()

    def put_retry(self, tenant: int, offset: int) -> None:
        """Put a retry aside; the tenant has no room."""
        self._retries.setdefault(tenant, {})[offset] = None
        self._freed.discard(tenant)

    def put_key(self, tenant: int, key: int) -> None:
        """Put a key aside whose first held message is the tenant's, which has no room."""
        self._keys.setdefault(tenant, {})[key] = None
        self._freed.discard(tenant)

    def tenant_freed(self, tenant: int) -> None:
        """A message of a tenant is no longer out."""
        if tenant in self._retries or tenant in self._keys:
            self._freed.add(tenant)

    def take_up(
        self,
        room_of: Callable[[int], int],
        retry: Callable[[int, int], bool],
        free: Callable[[int, int], bool],
    ) -> None:
        """Take up what there is room for.

        ``retry`` is given a tenant and an offset, ``free`` a tenant and a key; both return whether
        it needs a place of the tenant's.
        """
        for tenant in list(self._freed):
            room = room_of(tenant)
            _take_up(self._retries, tenant, room, retry)
            _take_up(self._keys, tenant, room, free)
            if tenant not in self._retries and tenant not in self._keys:
                self._freed.discard(tenant)


def _take_up(
    aside: dict[int, dict[int, None]], tenant: int, room: int, take: Callable[[int, int], bool]
) -> None:
    waiting = aside.get(tenant, {})
    while room > 0 and waiting:
        each = next(iter(waiting))
        del waiting[each]
        room -= take(tenant, each)
    if not waiting:
        aside.pop(tenant, None)
