"""Clock skew of the nodes, as the controller estimates it. Pure: times come in as arguments.

**Offset.** A heartbeat carries its node's wall time when it was sent. That minus the controller's
wall time at arrival is the offset of the node's clock, less the time on the way. The heartbeat with
the shortest way gives the largest difference: of the latest ``CLOCK_SAMPLES_MAX``, that one counts.
A silence ends none of these: heartbeats that come late after one do not make a clock late.
Half of the node's shortest round trip of late is added. So the error is at most half of that round
trip, while clocks are not set.

**Skew.** The skew of a node is its offset from the median of all nodes. So a controller whose own
clock is off is the odd one, and no other node.

**Unfit.** With an even number of nodes there are two middle offsets. A clock is off if it is more
than ``CLOCK_SKEW_UNFIT_MS`` from the nearer one. It is right again within half of that from the
farther one. In between nothing changes. So a node does not flap, and where half of the nodes
contradict the others, as with two nodes, none becomes unfit or fit again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from goq import limits


class ClockSkew(NamedTuple):
    """The clock of a node: ahead of the median, and its distances from the middle offsets."""

    skew_ms: int
    nearest_ms: int
    farthest_ms: int


def clock_offset_ms(samples_ms: tuple[int, ...], round_trip_ms: int) -> int | None:
    """Return a node's offset from the controller's clock; None with too few samples."""
    if len(samples_ms) < limits.CLOCK_SAMPLES_MIN:
        return None
    return max(samples_ms) + round_trip_ms // 2


def node_clocks(offsets_ms: Mapping[str, int]) -> dict[str, ClockSkew]:
    """Return the clocks of nodes by their offsets from any one clock."""
    ordered = sorted(offsets_ms.values())
    if not ordered:
        return {}
    low_ms, high_ms = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    clocks = {}
    for node, offset_ms in offsets_ms.items():
        distances = abs(offset_ms - low_ms), abs(offset_ms - high_ms)
        skew_ms = offset_ms - (low_ms + high_ms) // 2
        nearest_ms = 0 if low_ms <= offset_ms <= high_ms else min(distances)
        clocks[node] = ClockSkew(skew_ms, nearest_ms, max(distances))
    return clocks


def is_clock_off(clock: ClockSkew | None, *, was_off: bool) -> bool:
    """Whether a clock is so far off that its node is unfit to lead; None is a clock not known."""
    if clock is None:
        return was_off
    if clock.nearest_ms > limits.CLOCK_SKEW_UNFIT_MS:
        return True
    return was_off and clock.farthest_ms > limits.CLOCK_SKEW_UNFIT_MS // 2


def skewed_nodes(skews_ms: Mapping[str, int], before: Collection[str]) -> frozenset[str]:
    """Return the nodes to warn of; one of ``before`` stays until its skew is half of the limit."""
    limit_ms = limits.CLOCK_SKEW_WARN_MS
    return frozenset(
        node
        for node, skew_ms in skews_ms.items()
        if abs(skew_ms) > (limit_ms // 2 if node in before else limit_ms)
    )
