"""Who breaks things, and mends them again after a while."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from pysyncobj.node import Node

from tests.cluster.raft.fuzz.cluster import Cluster, Member
from tests.cluster.raft.fuzz.operator import Operator
from tests.cluster.raft.fuzz.profile import Profile


class Nemesis:
    """Break something of what the profile names, every now and then."""

    def __init__(self, cluster: Cluster, operator: Operator, profile: Profile) -> None:
        self._cluster = cluster
        self._operator = operator
        self._profile = profile
        self._world = cluster.world
        self._random = cluster.world.stream("nemesis")
        self._faults: dict[str, Callable[[], None]] = {
            "crash one": lambda: self._crash(1),
            "crash leader": self._crash_leader,
            "crash some": lambda: self._crash(self._random.randint(1, 3)),
            "crash all": lambda: self._crash(len(cluster.members)),
            "crash midway": self._crash_midway,
            "part": self._part,
            "part one way": self._part_one_way,
            "bridge": self._bridge,
            "isolate leader": self._isolate_leader,
            "slow": self._slow,
            "reset": lambda: cluster.network.reset(self._random.random()),
            "jump": self._jump,
            "pause": self._pause,
            "compact": self._compact,
            "transfer": self._transfer,
            "disk fails": self._fail_disk,
            "grow": operator.grow,
            "shrink": operator.shrink,
            "replace": operator.replace,
        }

    def keep_breaking(self, until_s: float) -> None:
        gap_s = self._random.expovariate(1 / self._profile.fault_gap_s)
        if self._world.now + gap_s < until_s:
            self._world.after(gap_s, lambda: self._break(until_s))

    def _break(self, until_s: float) -> None:
        name = self._random.choice(self._profile.faults)
        self._world.note(f"nemesis: {name}")
        self._world.counts[name] += 1
        self._faults[name]()
        self.keep_breaking(until_s)

    # Processes

    def _crash(self, how_many: int) -> None:
        up = self._cluster.up()
        for member in self._random.sample(up, min(how_many, len(up))):
            self._crash_for_a_while(member)

    def _crash_leader(self) -> None:
        leader = self._cluster.leader()
        if leader is not None:
            self._crash_for_a_while(leader)

    def _crash_for_a_while(self, member: Member) -> None:
        power = self._random.random() < self._profile.power
        self._cluster.crash(member, power=power)

    def _crash_midway(self) -> None:
        for member in self._some():
            member.disk.crash_at = member.disk.operations + self._random.randint(1, 12)

    # Links

    def _part(self) -> None:
        ids = self._cluster.network.up()
        left = {i for i in ids if self._random.random() < 0.5}
        right = set(ids) - left
        self._block({(a, b) for a in left for b in right} | {(b, a) for a in left for b in right})

    def _part_one_way(self) -> None:
        ids = self._cluster.network.up()
        if len(ids) > 1:
            one = self._random.choice(ids)
            others = [i for i in ids if i != one and self._random.random() < 0.7]
            if self._random.random() < 0.5:
                self._block({(one, other) for other in others})
            else:
                self._block({(other, one) for other in others})

    def _bridge(self) -> None:
        ids = self._cluster.network.up()
        self._random.shuffle(ids)
        left, right = ids[1::2], ids[2::2]  # the first reaches both sides
        self._block({(a, b) for a in left for b in right} | {(b, a) for a in left for b in right})

    def _isolate_leader(self) -> None:
        leader = self._cluster.leader()
        if leader is not None:
            others = [i for i in self._cluster.network.up() if i != leader.id]
            ways = {(leader.id, i) for i in others} | {(i, leader.id) for i in others}
            self._block(ways)

    def _block(self, ways: set[tuple[str, str]]) -> None:
        self._cluster.network.block(ways)
        self._world.after(self._random.uniform(0.2, 2.5), self._cluster.network.heal)

    def _slow(self) -> None:
        ids = self._cluster.network.up()
        for one in ids:
            for other in ids:
                if self._random.random() < 0.4:
                    self._cluster.network.slow[one, other] = self._random.uniform(0.02, 0.4)
        self._world.after(self._random.uniform(0.5, 2), self._cluster.network.heal)

    # Clocks

    def _jump(self) -> None:
        for member in self._some():
            member.host.jump(self._random.choice([0.1, 0.5, 5.0]))

    def _pause(self) -> None:
        for member in self._some():
            self._cluster.pause(member, self._random.uniform(0.1, 2))

    # Disks

    def _fail_disk(self) -> None:
        random = self._random
        for member in self._some():
            operations = random.choice(
                [("append", "write_at"), ("sync",), ("replace", "rename"), ("apply",)]
            )
            error = random.choice([errno.EIO, errno.ENOSPC])

            def fault(
                operation: str, _path: Path, on: tuple[str, ...] = operations, error: int = error
            ) -> int | None:
                failing = operation in on and random.random() < 0.3
                self._world.counts["disk errors"] += failing
                return error if failing else None

            member.disk.fault = fault
            self._world.after(random.uniform(0.05, 0.8), lambda m=member: self.mend_disk(m))

    def mend_disk(self, member: Member) -> None:
        member.disk.fault = lambda _operation, _path: None

    # The group

    def _compact(self) -> None:
        for member in self._some():
            if member.raft is not None:
                member.raft.forceLogCompaction()

    def _transfer(self) -> None:
        leader = self._cluster.leader()
        if leader is not None and leader.raft is not None:
            others = sorted(node.id for node in leader.raft.otherNodes)
            if others:
                raft, target = leader.raft, Node(self._random.choice(others))
                self._cluster.run(leader, raft, lambda: raft.transferLeadership(target))

    def _some(self) -> list[Member]:
        up = self._cluster.up()
        return self._random.sample(up, self._random.randint(min(1, len(up)), len(up)))
