"""The deliveries of one group that a tenant's cap on messages in flight postponed.

A retry, or a key with held messages, may come up while its tenant is at its cap. It is parked here,
so that the next receives do not meet it again. When a message of the tenant ends, as many are
resumed as there is room for then.
"""

from __future__ import annotations

from collections.abc import Callable


class TenantCap:
    """The parked retries and keys by tenant, in the order in which they came up."""

    __slots__ = ("_keys", "_retries", "freed")

    def __init__(self) -> None:
        self._retries: dict[int, dict[int, None]] = {}  # offsets
        self._keys: dict[int, dict[int, None]] = {}
        self.freed: set[int] = set()
        """Tenants with something parked, and with room since a message of theirs ended."""

    @property
    def has_parked(self) -> bool:
        """Whether anything is parked."""
        return bool(self._retries or self._keys)

    def park_retry(self, tenant: int, offset: int) -> None:
        """Park a retry of a tenant that has no room."""
        self._retries.setdefault(tenant, {})[offset] = None
        self.freed.discard(tenant)

    def park_key(self, tenant: int, key: int) -> None:
        """Park a key whose first held message is of a tenant that has no room."""
        self._keys.setdefault(tenant, {})[key] = None
        self.freed.discard(tenant)

    def take_retries(self) -> list[int]:
        """Forget all that is parked; return the offsets of the retries."""
        offsets = [offset for parked in self._retries.values() for offset in parked]
        self._retries, self._keys, self.freed = {}, {}, set()
        return offsets

    def on_tenant_freed(self, tenant: int) -> None:
        """Note that a message of a tenant is no longer in flight."""
        if tenant in self._retries or tenant in self._keys:
            self.freed.add(tenant)

    def resume(
        self,
        room_of: Callable[[int], int],
        resume_retry: Callable[[int, int], bool],
        resume_key: Callable[[int, int], bool],
    ) -> None:
        """Resume what there is room for.

        ``resume_retry`` gets a tenant and an offset, ``resume_key`` a tenant and a key. Both return
        whether the delivery will use up room of the tenant.
        """
        for tenant in list(self.freed):
            room = room_of(tenant)
            _resume(self._retries, tenant, room, resume_retry)
            _resume(self._keys, tenant, room, resume_key)
            if tenant not in self._retries and tenant not in self._keys:
                self.freed.discard(tenant)


def _resume(
    parked: dict[int, dict[int, None]],
    tenant: int,
    room: int,
    resume_one: Callable[[int, int], bool],
) -> None:
    waiting = parked.get(tenant, {})
    while room > 0 and waiting:
        each = next(iter(waiting))
        del waiting[each]
        room -= resume_one(tenant, each)
    if not waiting:
        parked.pop(tenant, None)
