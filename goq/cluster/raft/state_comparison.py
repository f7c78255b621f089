"""Comparison of a member's state with the leader's, by digests of the states at one index.

Equal logs must give equal states; a fault of a state machine can break that. So the leader
announces the digest of its state with each heartbeat, and each follower compares it with the digest
that it had at the same index. A follower that differs has *diverged*: it applies nothing more,
stands for no election and asks for the leader's snapshot.

The leader's state counts, right or wrong: one state on all nodes is what the cluster needs. With
another leader a diverged member compares anew, as it may agree with that one.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from goq import limits

_log = logging.getLogger(__name__)


class StateDigest(NamedTuple):
    """The digest of a state after the entry ``index``."""

    after: int
    digest: bytes


class StateComparison:
    """The recent digests of a member, and whether it has diverged from its leader."""

    def __init__(self) -> None:
        self.has_diverged = False
        self._recent: dict[int, bytes] = {}
        self._announced: StateDigest | None = None

    @property
    def latest(self) -> StateDigest | None:
        """The digest of the present state, None if it is not known."""
        if not self._recent:
            return None
        return StateDigest(*next(reversed(self._recent.items())))

    def on_applied(self, index: int, digest: bytes | None) -> None:
        """Note the digest after an entry; None says that the machine has none to compare."""
        if digest is None:
            self._recent.clear()
            return
        self._recent[index] = digest
        if len(self._recent) > limits.RAFT_DIGESTS_REMEMBERED:
            del self._recent[next(iter(self._recent))]
        self._compare()

    def on_announced(self, announced: StateDigest) -> None:
        """Note the digest that the leader announces."""
        self._announced = announced
        self._compare()

    def on_new_leader(self) -> None:
        """Compare anew: another leader, or none, and its state counts."""
        self.has_diverged = False
        self._announced = None

    def on_restored(self, index: int, digest: bytes | None) -> None:
        """Begin anew with the state of a snapshot."""
        self.has_diverged = False
        self._announced = None
        self._recent.clear()
        self.on_applied(index, digest)

    def _compare(self) -> None:
        announced = self._announced
        if announced is not None:
            own = self._recent.get(announced.after)
            if own is not None and own != announced.digest and not self.has_diverged:
                self.has_diverged = True
                _log.critical(
                    "this node's state differs from the leader's after entry %d of the log; it"
                    " takes no part until it has the leader's",
                    announced.after,
                )
