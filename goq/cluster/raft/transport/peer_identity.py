"""Members that this node does not talk with: those with another disk, or with another secret.

A member that has lost its disk has forgotten its votes and its log. With its help, two leaders
could be elected in one term, and acknowledged entries could be lost. So it is not talked with at
all, whatever it says. The same holds for the old disk of an id that has come back with a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from goq import limits

OTHER_DISK = "another disk than it is registered with"
_log = logging.getLogger(__name__)


class PeerIdentity:
    """One node's knowledge of disks: its ``own``, and by ``known`` those of others.

    ``known`` returns an empty text for a member whose disk is unknown. A disk that the log names
    with a member takes precedence: it is newer. ``is_new`` says that the node became a member with
    this start.
    """

    def __init__(
        self,
        own: str = "",
        known: Callable[[str], str] = lambda _id: "",
        *,
        is_new: bool = False,
    ) -> None:
        self.own = own
        self._registered_disk_of = known
        self._is_new = is_new
        self._mismatched_at_s: dict[str, float] = {}
        self._logged_disks: dict[str, str] = {}
        self._rejected_at_s: dict[str, float] = {}
        self._other_secret_at_s: dict[str, float] = {}

    def rejection_reason(self, peer: str, logged: str, disk: str, now_s: float) -> str:
        """Return why a member with this disk is rejected, empty if it is accepted."""
        known = logged or self._registered_disk_of(peer)
        if not known or known == disk:
            return ""
        self._mismatched_at_s[peer] = now_s
        if self._logged_disks.get(peer) != disk:  # once, not with each reconnect
            self._logged_disks[peer] = disk
            _log.error(
                "%s is rejected: it comes with another disk than it is registered with, without its"
                " votes and its log. See the log of that node",
                peer,
            )
        return OTHER_DISK

    def on_rejected(self, peer: str, reason: str, now_s: float) -> None:
        """Note that a member rejects this node."""
        if peer not in self._rejected_at_s:
            _log.error("%s rejects this node, which comes with %s", peer, reason)
        self._rejected_at_s[peer] = now_s

    def on_secret_mismatch(self, peer: str, now_s: float) -> None:
        """Note that a member has another secret."""
        if peer not in self._other_secret_at_s:
            _log.error(
                "%s and this node have different secrets: compare cluster.secret_file on both", peer
            )
        self._other_secret_at_s[peer] = now_s

    def is_quarantined(self, now_s: float) -> bool:
        """Return whether this node, which is new, must not talk with other new nodes either.

        Nodes that were all wiped know nothing of each other's disks. If they were a majority, they
        would form another cluster, while a node that knows better still exists.
        """
        return self._is_new and bool(self.rejected_by(now_s))

    def on_accepted(self, peer: str) -> None:
        """Note that a member and this node have accepted each other."""
        self._rejected_at_s.pop(peer, None)
        self._logged_disks.pop(peer, None)
        self._other_secret_at_s.pop(peer, None)

    def mismatched(self, now_s: float) -> tuple[str, ...]:
        """Return the members that recently came with another disk, sorted."""
        return _recent(self._mismatched_at_s, now_s)

    def other_secret(self, now_s: float) -> tuple[str, ...]:
        """Return the members that recently came with another secret, sorted."""
        return _recent(self._other_secret_at_s, now_s)

    def rejected_by(self, now_s: float) -> tuple[str, ...]:
        """Return the members that recently rejected this node, sorted."""
        return _recent(self._rejected_at_s, now_s)


def _recent(times_s: dict[str, float], now_s: float) -> tuple[str, ...]:
    if not times_s:
        return ()
    patience_s = limits.RAFT_UNKNOWN_PEER_SEEN_S
    return tuple(sorted(id_ for id_, at_s in times_s.items() if now_s - at_s < patience_s))
