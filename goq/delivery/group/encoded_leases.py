"""The leases of a group with very many, encoded ahead of a snapshot.

To encode 60,000 leases takes longer than the event loop may be held, and a snapshot is of one
moment. So leases are encoded a few at a time, while events go on, and each keeps what it became
until its ranges change.
"""

from __future__ import annotations

import msgspec

from goq.delivery.group.group import Group

_encoder = msgspec.msgpack.Encoder()


class LeaseEncoding:
    """Encodes the leases of one range without failures: nearly all, where a group has many."""

    def __init__(self, group: Group) -> None:
        self._left = list(group.leases.values())

    def encode(self, leases_max: int) -> bool:
        """Encode up to so many leases; return whether there were any left."""
        some = self._left[-leases_max:]
        del self._left[-leases_max:]
        for lease in some:
            part = lease.parts.only()
            if part is not None and not part.failures and lease.parts.encoded is None:
                start, end, attempt, time_ms, _ = part
                held = lease.token, lease.consumer, [(start, end, attempt, time_ms, 0)]
                lease.parts.encoded = msgspec.Raw(_encoder.encode(held))
        return bool(some)
