"""Who comes under the id of a member, but with another disk than it is known with.

A member that has lost its disk has forgotten its votes and what it said that it had: with its help
two leaders could be elected in one term, and what was acknowledged could be lost. So it is not
talked with at all, whatever it says. The same holds for the old disk of an id that has come back
with a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from goq import limits

OTHER_DISK = "another disk than the cluster knows it with"
_log = logging.getLogger(__name__)


class PeerIdentity:
    """What one node knows of disks: its ``own``, and by ``known`` those of others, empty if not.

    A disk that the log names with a member counts before what ``known`` says: it is newer.
    ``is_new`` says that the node has begun to be a member with this start.
    """

    def __init__(
        self,
        own: str = "",
        known: Callable[[str], str] = lambda _id: "",
        *,
        is_new: bool = False,
    ) -> None:
        self.own = own
        self._known = known
        self._is_new = is_new
        self._seen_s: dict[str, float] = {}
        self._told: dict[str, str] = {}
        self._rejected_by_s: dict[str, float] = {}

    def rejection_reason(self, peer: str, logged: str, disk: str, now_s: float) -> str:
        """Return why a member is not let in with this disk, empty if it is."""
        known = logged or self._known(peer)
        if not known or known == disk:
            return ""
        self._seen_s[peer] = now_s
        if self._told.get(peer) != disk:  # once, though it comes again and again
            self._told[peer] = disk
            _log.error(
                "%s comes with another disk than it is known with, and is not let in: what it had,"
                " and what it has promised, is not there. See its own log",
                peer,
            )
        return OTHER_DISK

    def on_rejected(self, peer: str, reason: str, now_s: float) -> None:
        """Take note that a member does not let this node in."""
        if peer not in self._rejected_by_s:
            _log.error("%s does not let this node in: it comes with %s", peer, reason)
        self._rejected_by_s[peer] = now_s

    def is_quarantined(self, now_s: float) -> bool:
        """Whether this node, which is new, must not talk with other new ones either.

        Nodes that were all wiped know nothing of each other's disks: if they are most, they would
        begin another cluster, while who knows better is still there.
        """
        return self._is_new and bool(self.rejected_by(now_s))

    def on_accepted(self, peer: str) -> None:
        """Take note that a member and this node talk."""
        self._rejected_by_s.pop(peer, None)
        self._told.pop(peer, None)

    def mismatched(self, now_s: float) -> tuple[str, ...]:
        """Return who came with another disk lately, in order."""
        return _lately(self._seen_s, now_s)

    def rejected_by(self, now_s: float) -> tuple[str, ...]:
        """Return who did not let this node in lately, in order."""
        return _lately(self._rejected_by_s, now_s)


def _lately(times_s: dict[str, float], now_s: float) -> tuple[str, ...]:
    patience_s = limits.RAFT_STRANGER_SEEN_S
    return tuple(sorted(id_ for id_, at_s in times_s.items() if now_s - at_s < patience_s))
