"""How long a large snapshot holds the event loop: ``python -m bench.log.snapshots``.

Prints milliseconds of CPU and asserts nothing. "At once" is what a node with few groups does. Else
groups are encoded ahead in steps, while events change some of them again: the longest step counts,
and the moment of the snapshot.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from goq.broker.events.writer import GROUPS_AT_ONCE
from goq.delivery.events.event import Acked, Leased, token_of
from goq.delivery.partition_state import PartitionState
from goq.delivery.snapshot import DEFAULT_SNAPSHOT_LIMITS, EncodedSnapshot

GROUPS = 10_000
LEASES = 60_000
_MESSAGES = 10


def main() -> None:
    """Measure a snapshot of groups that have a lease each, as events change none or some."""
    state = PartitionState()
    state.extend_to(1_000_000)
    for number in range(GROUPS):
        lease(state, None, number, 0)
    gc.disable()  # as a node does after its start
    snapshot = EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS)
    print(f"{GROUPS:,} groups at once: {cpu_ms(lambda: list(snapshot.frames(0))):.1f} ms")
    for changes in (0, 10, 100):
        in_steps(state, changes)
    of_many_leases()


def of_many_leases() -> None:
    """Measure a snapshot of a group with very many leases of one message, of which some end."""
    state = PartitionState()
    state.extend_to(LEASES)
    for number in range(LEASES):
        state.apply(Leased("g", "c", 10**13, [(number, number + 1, 1)], "session"), number, 1)
    at_once = EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS)
    print(f"{LEASES:,} leases at once: {cpu_ms(lambda: list(at_once.frames(0))):.1f} ms")
    snapshot = EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS)
    steps_ms, ended = list[float](), 0
    while snapshot_step(snapshot, steps_ms):
        for number in range(ended, ended + 10):
            acked = Acked("g", token_of(1, number), [(number, number + 1)])
            state.apply(acked, LEASES + number, 1)
            snapshot.on_event(acked)
        ended += 10
    moment_ms = cpu_ms(lambda: list(snapshot.frames(0)))
    print(
        f"{LEASES:,} leases in {len(steps_ms)} steps, 10 ended after each: longest step"
        f" {max(steps_ms):.1f} ms, moment of the snapshot {moment_ms:.1f} ms"
    )


def snapshot_step(snapshot: EncodedSnapshot, steps_ms: list[float]) -> bool:
    """Encode some more ahead; return whether there was any left."""
    is_on = True

    def step() -> None:
        nonlocal is_on
        is_on = snapshot.prepare(GROUPS_AT_ONCE)

    steps_ms.append(cpu_ms(step))
    return is_on


def in_steps(state: PartitionState, changes: int) -> None:
    """Measure a snapshot in steps, with so many groups changed after each."""
    snapshot = EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS)
    steps_ms = list[float]()
    while snapshot_step(snapshot, steps_ms):
        for number in range(changes):
            group = (97 * len(steps_ms) + number) % GROUPS
            lease(state, snapshot, group, len(steps_ms) * _MESSAGES)
    moment_ms = cpu_ms(lambda: list(snapshot.frames(0)))
    print(
        f"{GROUPS:,} groups in {len(steps_ms)} steps, {changes} changed after each:"
        f" longest step {max(steps_ms):.1f} ms, moment of the snapshot {moment_ms:.1f} ms"
    )


def lease(state: PartitionState, snapshot: EncodedSnapshot | None, number: int, start: int) -> None:
    event = Leased(f"group-{number}", "c", 10**13, [(start, start + _MESSAGES, 1)], "session")
    state.apply(event, start * GROUPS + number, 1)
    if snapshot is not None:
        snapshot.on_event(event)


def cpu_ms(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return (time.process_time() - began_s) * 1000


if __name__ == "__main__":
    main()
