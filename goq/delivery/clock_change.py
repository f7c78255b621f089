"""Change of the clock that a partition's deadlines are by: another one leads, or it was set.

Deadlines of leases and due times of retries are wall time of the leader that recorded them. The
clock of a new leader may be ahead or behind, and the leader's own may be set. So the leader moves
these times by the difference of the clocks, and records the move as an event.

Two bounds hold, whatever the clocks show:

- No lease lasts longer than its length, counted from the takeover. The old leader's clock showed at
  least the time of the last event. So at most the rest from there on is left, and no shift exceeds
  the time from the last event to now.
- No lease ends before its time by more than ``CLOCK_SKEW_WARN_MS``: a smaller difference moves
  nothing. If the difference is not known, a lease gets the whole rest from the last event on. A
  retry then keeps its time within the first bound, because no consumer holds it.

For a node that starts again the first bound holds, too: its clock may have been set back meanwhile.
One that was set forward cannot be told from a node that was down for long.
"""

from __future__ import annotations

from collections.abc import Callable

from goq import limits
from goq.delivery.events.event import ClockChanged
from goq.delivery.partition_state import PartitionState

AheadOf = Callable[[str], int | None]
"""Returns by how many milliseconds this node's clock is ahead of another node's, None if that is
not known. The name "" is that of an old leader that did not record itself."""


def is_ahead_unknown(_node: str) -> int | None:
    """Return None: nothing is known of other nodes' clocks."""
    return None


def clock_change(
    state: PartitionState,
    node: str,
    now_ms: int,
    last_event_us: int | None,
    ahead_of: AheadOf,
) -> ClockChanged | None:
    """Return the event by which times are by the clock of ``node``; None if they are already.

    ``now_ms`` is by that clock. ``last_event_us`` is the time of the last event, by the clock of
    ``state.clock_node``; None without any.
    """
    is_own = state.clock_node == node
    if last_event_us is None or not _has_times(state):
        return None if is_own else ClockChanged(node)
    longest_ms = now_ms - last_event_us // 1000
    if is_own:
        shift_ms = min(0, _shift(longest_ms))
        return ClockChanged(node, shift_ms, shift_ms) if shift_ms else None
    ahead_ms = ahead_of(state.clock_node)
    if ahead_ms is None:
        return ClockChanged(node, _shift(longest_ms), _shift(min(0, longest_ms)))
    shift_ms = _shift(min(ahead_ms, longest_ms))
    return ClockChanged(node, shift_ms, shift_ms)


def clock_set(state: PartitionState, step_ms: int) -> ClockChanged | None:
    """Return the event for a clock that was set ahead by so much, or back; None without times."""
    if not _has_times(state):
        return None
    return ClockChanged(state.clock_node, step_ms, step_ms)


def _has_times(state: PartitionState) -> bool:
    return any(group.leases or len(group.retries) for group in state.groups.values())


def _shift(difference_ms: int) -> int:
    """Return a difference of clocks, 0 if it is small."""
    return difference_ms if abs(difference_ms) > limits.CLOCK_SKEW_WARN_MS else 0
