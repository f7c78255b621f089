"""What a seed decides before anything happens: how big the group is, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tests.cluster.raft.fuzz.libraries.library import Sizes

CRASHES = ("crash one", "crash leader", "crash some", "crash all", "crash midway")
CUTS = ("part", "part one way", "bridge", "isolate leader")
LINKS = ("slow", "reset")
CLOCKS = ("jump", "pause")
OTHERS = ("compact", "transfer")
DISKS = ("disk fails",)
MEMBERS = ("grow", "shrink", "replace")


@dataclass(frozen=True, slots=True)
class Profile:
    """What a run does."""

    nodes: int
    sizes: Sizes
    latency_s: float
    gap_s: float  # between proposals
    fault_gap_s: float
    faults: tuple[str, ...]
    power: float  # share of crashes that take the power away
    crossing: bool
    rude: bool = False
    poison: bool = False
    paddings: tuple[int, ...] = (0, 0, 0, 10, 300)  # characters that commands may have besides
    faults_s: float = 6.0


def any_profile(seed: int) -> Profile:
    """Return what a seed decides when anything may go wrong."""
    random = Random(f"{seed} profile")
    families = [CRASHES, CUTS, LINKS, CLOCKS, OTHERS, DISKS, MEMBERS]
    chosen = random.sample(families, random.randint(2, len(families)))
    return Profile(
        nodes=random.choice([1, 2, 3, 3, 3, 3, 4, 5]),
        sizes=any_sizes(random),
        latency_s=random.choice([0.001, 0.005, 0.03]),
        gap_s=random.choice([0.02, 0.05, 0.1]),
        fault_gap_s=random.choice([0.2, 0.4, 0.8]),
        faults=tuple(sorted(fault for family in chosen for fault in family)),
        power=random.choice([0.0, 0.5, 1.0]),
        crossing=random.random() < 0.3,
        rude=random.random() < 0.3,
        poison=random.random() < 0.3,
    )


def any_sizes(random: Random) -> Sizes:
    return Sizes(
        compaction_entries=random.choice([4, 8, 16, 40]),
        batch_bytes=random.choice([64, 200, 1000, 65536]),
        snapshot_chunk_bytes=random.choice([200, 1000, 65536]),
        journal_bytes=random.choice([2000, 10**6, 10**6]),
        in_flight_entries=random.choice([4, 20, 4096]),
    )


def gentle_profile(seed: int) -> Profile:
    """Return faults that the library itself should bear: no power loss, no rude caller."""
    random = Random(f"{seed} gentle")
    return Profile(
        nodes=3,
        sizes=any_sizes(random),
        latency_s=random.choice([0.001, 0.005, 0.03]),
        gap_s=random.choice([0.02, 0.05]),
        fault_gap_s=0.4,
        faults=("crash one", "crash leader", "crash all", *CUTS, *LINKS),
        power=0.0,
        crossing=False,
    )


def crossing_profile(seed: int) -> Profile:
    """Return links that break often and bring late what was on them, and nodes that restart."""
    random = Random(f"{seed} crossing")
    return Profile(
        nodes=3,
        sizes=replace(any_sizes(random), batch_bytes=64, in_flight_entries=4096),
        latency_s=0.03,
        gap_s=0.02,
        fault_gap_s=0.15,
        faults=("crash one", "crash leader", "reset", "isolate leader", "part one way", "transfer"),
        power=0.0,
        crossing=True,
    )


def power_profile(seed: int) -> Profile:
    """Return nodes that lose power all the time, mostly while they write."""
    random = Random(f"{seed} power")
    return Profile(
        nodes=random.choice([1, 3]),
        sizes=any_sizes(random),
        latency_s=0.005,
        gap_s=0.02,
        fault_gap_s=0.2,
        faults=("crash one", "crash leader", "crash all", *["crash midway"] * 5),
        power=1.0,
        crossing=False,
        paddings=(700, 1500),
    )


def disk_profile(seed: int) -> Profile:
    """Return disks that fail, and power that fails soon after."""
    random = Random(f"{seed} disk")
    return Profile(
        nodes=random.choice([1, 3]),
        sizes=any_sizes(random),
        latency_s=0.005,
        gap_s=0.02,
        fault_gap_s=0.2,
        faults=("crash one", "crash all", *DISKS * 3),
        power=1.0,
        crossing=False,
    )


def member_profile(seed: int) -> Profile:
    """Return members that come and go, and logs that must be short."""
    random = Random(f"{seed} member")
    return Profile(
        nodes=random.choice([1, 2, 3]),
        sizes=replace(any_sizes(random), journal_bytes=2000, snapshot_chunk_bytes=1000),
        latency_s=0.02,
        gap_s=0.02,
        fault_gap_s=0.3,
        faults=(*MEMBERS, "crash one", "slow", "isolate leader"),
        power=0.5,
        crossing=False,
    )


PROFILES = {
    "any": any_profile,
    "crossing": crossing_profile,
    "disk": disk_profile,
    "gentle": gentle_profile,
    "member": member_profile,
    "power": power_profile,
}
