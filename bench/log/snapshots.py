"""How long a snapshot of many groups holds the event loop: ``python -m bench.log.snapshots``.

Prints milliseconds of CPU and asserts nothing. "At once" is what a node with few groups does. Else
groups are encoded ahead in steps, while events change some of them again: the longest step counts,
and the moment of the snapshot.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from goq.broker.events.writer import GROUPS_AT_ONCE
from goq.delivery.events.event import Leased
from goq.delivery.partition_state import PartitionState
from goq.delivery.snapshot import DEFAULT_SNAPSHOT_LIMITS, EncodedSnapshot

GROUPS = 10_000
_MESSAGES = 10


def main() -> None:
    """Measure a snapshot of groups that have a lease each, as events change none or some."""
    state = PartitionState()
    state.extend_to(1_000_000)
    for number in range(GROUPS):
        lease(state, None, number, 0)
    gc.collect()
    gc.freeze()  # as a node does after its start
    snapshot = EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS)
    print(f"{GROUPS:,} groups at once: {cpu_ms(lambda: list(snapshot.frames(0))):.1f} ms")
    for changes in (0, 10, 100):
        in_steps(state, changes)


def in_steps(state: PartitionState, changes: int) -> None:
    """Measure a snapshot in steps, with so many groups changed after each."""
    snapshot = EncodedSnapshot(state, DEFAULT_SNAPSHOT_LIMITS)
    steps_ms, is_on = list[float](), True

    def step() -> None:
        nonlocal is_on
        is_on = snapshot.prepare(GROUPS_AT_ONCE)

    while is_on:
        steps_ms.append(cpu_ms(step))
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
