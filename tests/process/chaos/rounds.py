"""Rounds of faults under load, and the table of what came of them."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.process.chaos.cluster import SETTLE_S_MAX, chaos_cluster
from tests.process.chaos.load import TOPIC, Load
from tests.process.chaos.nemesis import FAULTS, Fault
from tests.support.eventually import eventually

_WHOLE_FIRST = 0.75
"""How often a fault strikes a cluster that is over the last: others may take all that is left."""


class Outcome:
    """What was counted, and how long each fault kept a partition from being published to.

    That is of faults which struck when all was well.
    """

    def __init__(self) -> None:
        self.unavailable_s: dict[Fault, list[float]] = defaultdict(list)
        self.counts = ""

    def table(self) -> str:
        """Return all in Markdown."""
        lines = [
            "| fault | times | unavailable p50 | p99 | longest |",
            "|---|--:|--:|--:|--:|",
        ]
        for fault, times_s in self.unavailable_s.items():
            ordered = sorted(times_s)
            marks = (ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1])
            cells = " | ".join(f"{mark:.2f} s" for mark in marks)
            lines.append(f"| {fault.name} | {len(ordered)} | {cells} |")
        return "\n".join([*lines, "", self.counts])


def run(
    folder: Path,
    seed: str,
    faults: Iterable[Fault],
    say: Callable[[str], None] = lambda _line: None,
) -> Outcome:
    """Strike a cluster under load with one fault after the other, then check every promise.

    Raises ``Violations`` for each that was broken.
    """
    outcome = Outcome()
    chance = random.Random(seed)
    settings = ("defaults.topic.segment.bytes=256KiB",)
    with (
        chaos_cluster(folder, settings) as cluster,
        Load(cluster, chance.getrandbits(32)).running() as load,
    ):
        load.wait_for_progress(5)
        for fault in faults:
            if fault.needs_disk and cluster.disk is None:
                say(f"{fault.name}: left out, no disk can be mounted here")
                continue
            is_whole = chance.random() < _WHOLE_FIRST
            if is_whole:
                eventually(
                    lambda: cluster.is_whole(TOPIC),
                    "all in sync",
                    seconds=SETTLE_S_MAX,
                    pause_s=0.1,
                )
            since_s = time.monotonic()
            try:
                fault.strike(cluster, chance)
                load.wait_for_progress(5)
            except BaseException as error:
                error.add_note(f"the fault was: {fault.name}")
                raise
            gap_s = load.acknowledged.longest_gap_s(since_s, time.monotonic())
            if is_whole:
                outcome.unavailable_s[fault].append(gap_s)
            say(f"{fault.name}: unavailable for {gap_s:.2f} s; {load.counts()}")
        load.finish_and_check()
        stored = load.ledger.stored_count
        outcome.counts = (
            f"{stored:,} messages acknowledged, lost 0, stored twice 0; {load.retries:,} requests"
            f" sent again; {load.ledger.acked_count:,} acks acknowledged, delivered again 0;"
            " out of the order of their keys 0; all replicas the same bytes, all metadata the same"
        )
    return outcome


def for_minutes(minutes: float, chance: random.Random) -> Iterable[Fault]:
    """Yield faults, each kind equally often, until so many minutes are over."""
    until_s = time.monotonic() + 60 * minutes
    while True:
        for fault in chance.sample(FAULTS, len(FAULTS)):
            if time.monotonic() >= until_s:
                return
            yield fault
