"""What must hold at any moment, and what must hold once all is whole again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from goq.broker.partition.loader import open_partition
from goq.clock import ManualClock
from goq.cluster.metadata.state import MetadataState, PartitionMetadata, encode_state
from goq.cluster.replication.protocol import PartitionKey
from tests.sim.books import Books, name_of
from tests.sim.cluster import GROUP, NAMES, PARTITIONS, SETTINGS, TOPIC, Cluster
from tests.sim.logs import (
    LOGS,
    bytes_of,
    frames_in,
    from_same_start,
    messages_of,
    stable_bytes,
    stable_files,
)
from tests.sim.process import Process
from tests.support.broker.context import context_on
from tests.support.broker.partition_internals import state_of
from tests.support.delivery.model import canonical

MIN_INSYNC = 2
_LOOK_S = 0.5
_LOOK_S_MAX = 4.0
_RESTARTS = 0.25
"""The share of acknowledged batches that are looked for in what disks would recover."""
_CLOCK_NOTICED_S = 5.0
_BASE_MS = ManualClock().wall_ms()


class Checks:
    """Looks at all nodes, from outside."""

    def __init__(self, cluster: Cluster, books: Books) -> None:
        self.is_rotten = False
        """Whether bits were flipped: then files may differ until they are mended."""
        self.may_diverge = False
        """Whether a fault makes states differ; in the end they are equal all the same."""
        self._cluster = cluster
        self._min_insync: int | None = None
        self._min_insync_changes = 0
        self._acknowledged_version = 0
        self._books = books
        self._world = cluster.world
        self._random = cluster.world.stream("checks")
        self._clock_set_s = -_CLOCK_NOTICED_S
        self._states: dict[int, MetadataState] = {}
        self._terms: dict[int, str] = {}

    @property
    def raft_leaders(self) -> int:
        """How many leaders of Raft were seen."""
        return len(self._terms)

    # Time

    def true_ms(self) -> int:
        return int(self._world.loop.time() * 1000) + _BASE_MS

    def latest_ms(self) -> int:
        """Return the latest time that any clock has shown so far."""
        clocks = [machine.clock for machine in self._cluster.machines.values()]
        return max(max(clock.wall_us(), clock.latest_us) for clock in clocks) // 1000

    def clock_was_set(self) -> None:
        """Note that a clock was set: deadlines by it may be off, until others have noticed."""
        self._clock_set_s = self._world.loop.time()

    def are_deadlines_right(self, since_s: float) -> bool:
        """Whether no clock was set since a time, nor shortly before."""
        return self._clock_set_s < since_s - _CLOCK_NOTICED_S

    # At any moment

    def on_min_insync_change(self, number: int | None) -> None:
        """Note that a change of ``min_insync`` begins (None), or has succeeded."""
        self._min_insync = number
        self._min_insync_changes += 1

    def on_change_acknowledged(self, version: int) -> None:
        """Note that a change of the metadata was acknowledged: every node is to answer by it."""
        self._acknowledged_version = max(self._acknowledged_version, version)
        self._look_for_old_answers()

    def _look_for_old_answers(self) -> None:
        """Look at all nodes of the cluster; one that has left may not know it yet."""
        version, nodes = self._acknowledged_version, self._cluster.state.nodes
        for process in self._cluster.live():
            if process.is_ready and process.name in nodes:
                freshness = process.cluster_node.freshness
                answers = freshness._is_up and freshness._has_session()
                if answers and freshness.reconciled_version < version:
                    self._world.fail(
                        f"{process.name} answers by version {freshness.reconciled_version} of the"
                        f" metadata, though {version} was acknowledged"
                    )

    def promised_copies(self) -> tuple[int, int]:
        """Return on how many disks a batch sent now is once acknowledged, and of which change.

        More than the least only once every node follows it, and until the next change. A partition
        has fewer replicas while a node that lost its disk is replaced.
        """
        change = self._min_insync_changes + len(self._cluster.retired)
        known = set()
        for process in self._cluster.live():
            known.add(_followed_min_insync(process) if process.is_ready else None)
        is_promised = known == {self._min_insync} and not self._cluster.lost
        copies = (self._min_insync if is_promised else None) or MIN_INSYNC
        return (copies if copies <= self._replicas() else MIN_INSYNC), change

    def _replicas(self) -> int:
        """Return the number of replicas of the partition that has the fewest, as any node knows."""
        topics = [
            process.cluster_node.state.topics.get(TOPIC)
            for process in self._cluster.live()
            if process.is_ready
        ]
        partitions = [partition for topic in topics if topic for partition in topic.partitions]
        return min((len(partition.replicas) for partition in partitions), default=0)

    def acknowledged(self, values: list[bytes], promised: tuple[int, int]) -> None:
        """Check that what was acknowledged was synced on as many disks as were promised.

        One of them may be lost since. A share of the batches is also looked for in what each disk
        would recover, which is slow.
        """
        if self.is_rotten:
            return
        copies, changes = promised
        is_unchanged = changes == self._min_insync_changes + len(self._cluster.retired)
        needed = min(copies if is_unchanged else MIN_INSYNC, self._replicas())
        self._world.counts["batches acknowledged on all disks"] += needed == len(NAMES)
        machines = (*self._cluster.machines.values(), *self._cluster.retired)
        self._check_synced(values, [stable_files(machine) for machine in machines], needed)
        if self._random.random() < _RESTARTS:
            number = self._books.acknowledged[values[0]][0]
            recovered = [[stable_bytes(machine, number, "messages")] for machine in machines]
            self._check_synced(values, recovered, needed)

    def _check_synced(
        self, values: list[bytes], disks: Sequence[Iterable[bytes | bytearray]], needed: int
    ) -> None:
        for value in values:
            synced = sum(any(value in data for data in disk) for disk in disks)
            if synced < needed:
                self._world.fail(f"{value!r} was acknowledged, and is synced on {synced} disks")

    async def keep_looking(self) -> None:
        while True:
            await asyncio.sleep(min(_LOOK_S * self._world.pace, _LOOK_S_MAX))
            self.look()

    def look(self) -> None:
        """Check what must hold at any moment."""
        for process in self._cluster.live():
            view = process.raft.status if process.raft is not None else None
            if view is not None and view.is_leader:
                before = self._terms.setdefault(view.term, process.name)
                if before != process.name:
                    self._world.fail(f"term {view.term} has leaders {before} and {process.name}")
            self._look_at_state(process)
        self._look_for_old_answers()
        topic = self._cluster.topic()
        if topic is None or self.is_rotten:
            return
        for number, partition in enumerate(topic.partitions):
            self._look_at(PartitionKey(TOPIC, topic.topic_id, number), partition)

    def _look_at_state(self, process: Process) -> None:
        """Check that all nodes knew the same after each command of the log of Raft."""
        if process.is_ready:
            state = process.cluster_node.state
            before = self._states.setdefault(state.version, state)
            if process.raft is not None and process.raft.status.has_diverged:
                self._world.counts["looks at a state that had diverged"] += 1
                if not self.may_diverge:
                    self._world.fail(f"{process.name} has another state than the leader of Raft")
            if encode_state(before) != encode_state(state) and not self.may_diverge:
                self._world.fail(f"{process.name} knows another state {before.version}")

    def _look_at(self, key: PartitionKey, partition: PartitionMetadata) -> None:
        leader = self._cluster.leader_of(key.number)
        replica = None if leader is None else leader.cluster_node.replicas.get(key)
        leading = None if replica is None else replica.as_leader
        if leading is None or leading.leader_epoch != partition.leader_epoch:
            return
        for log, safe in zip(LOGS, leading.progress.high_watermark, strict=True):
            assert leader is not None
            own = stable_bytes(leader.machine, key.number, log)
            is_lost = partial(replica.lost_gaps.cover, LOGS.index(log))
            for name in partition.in_sync:
                if name in self._cluster.lost or name not in self._cluster.machines:
                    continue
                other = stable_bytes(self._cluster.machines[name], key.number, log)
                what = f"{key.number}/{log} of {leader.name} and {name}"
                self._compare(what, own, other, safe, is_lost)

    def _compare(
        self, what: str, own: bytes, other: bytes, safe: int, is_lost: Callable[[int, int], bool]
    ) -> None:
        """Check that both have synced the same frames up to an offset, but what no replica has.

        The leader deletes segments of events first.
        """
        own, other = from_same_start(own, other)
        needed, end = 0, 0
        for frame in frames_in(own):
            if frame.start >= safe:
                break
            needed, end = frame.position + frame.size_bytes, frame.end
        if not is_lost(end, safe):
            self._world.fail(f"{what}: {safe} is safe, and the leader has synced {end}")
        elif own[:needed] != other[:needed]:
            self._world.fail(f"{what}: the bytes below {safe} differ")

    # Once all is whole

    def is_done(self) -> bool:
        """Whether the group has done all there is."""
        for number in range(PARTITIONS):
            leader = self._cluster.leader_of(number)
            topic = None if leader is None else leader.broker.topics.get(TOPIC)
            partition = None if topic is None else topic.partitions.get(number)
            if partition is None:
                return False
            state = state_of(partition)
            group = state.group(GROUP)
            if group.leases or len(group.retries) or state.outbox.entries:
                return False
            if group.taken.floor != partition.end_offset:
                return False
        return True

    def is_well(self) -> bool:
        """Whether all nodes are up and fit, and all replicas in sync; under load."""
        state = self._cluster.state
        return (
            len(self._cluster.live()) == len(self._cluster.names)
            and sorted(state.nodes) == self._cluster.names
            and not any(node.leaving for node in state.nodes.values())
            and all(node.is_up for node in state.nodes.values())
            and all(n.can_lead for n in state.nodes.values() if n.id != self._cluster.skewed)
            and all(
                partition.leader is not None and len(partition.in_sync) == len(partition.replicas)
                for topic in state.topics.values()
                for partition in topic.partitions
            )
        )

    def does_no_skewed_node_lead(self) -> bool:
        """Whether the node with a wrong clock has left the lead to the others."""
        topic = self._cluster.topic()
        return topic is not None and all(
            partition.leader not in (None, self._cluster.skewed) for partition in topic.partitions
        )

    def is_in_sync(self) -> bool:
        """Whether all replicas are in sync and as long as each other."""
        topic = self._cluster.topic()
        if topic is None:
            return False
        for number, partition in enumerate(topic.partitions):
            key = PartitionKey(TOPIC, topic.topic_id, number)
            replicas = [self._cluster.processes.get(name) for name in partition.replicas]
            ends = {process and _ends(process, key) for process in replicas}
            able = {node.id for node in self._cluster.state.nodes.values() if node.can_lead}
            count = min(partition.replication_factor, len(able.union(partition.replicas)))
            if len(partition.in_sync) < max(count, len(replicas)) or partition.target:
                return False
            if len(ends) > 1 or None in ends:
                return False
        return True

    def are_states_equal(self) -> bool:
        """Whether all nodes that know the newest state know the same."""
        live = self._cluster.live()
        if not all(process.is_ready for process in live):
            return False
        states = [process.cluster_node.state for process in live]
        newest = max(state.version for state in states)
        return len({encode_state(state) for state in states if state.version == newest}) == 1

    def files_set_aside(self) -> int:
        """Return how many files nodes set aside, since their metadata had forked.

        Between two looks a node may fork and heal; this is what stays of it.
        """
        machines = (*self._cluster.machines.values(), *self._cluster.retired)
        return sum("/diverged/" in path for machine in machines for path in machine.disk._inodes)

    def are_equal(self) -> bool:
        """Whether all replicas have the same frames, and nothing else but damage."""
        topic = self._cluster.topic()
        return topic is not None and all(
            len({bytes_of(machines[name], number, log) for name in partition.replicas}) == 1
            for machines in (self._cluster.machines,)
            for number, partition in enumerate(topic.partitions)
            for log in LOGS
        )

    def is_as_rebuilt(self) -> bool:
        """Whether each leader's state is what its logs lead to; not while an event is under way."""
        return all(self._is_as_rebuilt(number) for number in range(PARTITIONS))

    def _is_as_rebuilt(self, number: int) -> bool:
        leader = self._cluster.leader_of(number)
        topic = None if leader is None else leader.broker.topics.get(TOPIC)
        live = None if topic is None else topic.partitions.get(number)
        if leader is None or live is None:
            return False
        disk = leader.machine.disk.copy()
        context = context_on(
            disk,
            executor=leader.broker.executor,
            clock=leader.machine.clock,
            epoch=live._context.epoch,
        )
        directory = leader.broker.topic(TOPIC).directory / str(number)
        rebuilt = open_partition(directory, context, SETTINGS)
        return bool(canonical(rebuilt.state) == canonical(live._state))

    def logs(self, died: set[bytes]) -> None:
        """Check, when all nodes have stopped, that all have what was acknowledged, each once.

        What ``died`` need not have been delivered. Whoever led as it ended wrote a last snapshot;
        not all others were there to have it, too.
        Where metadata may diverge, a node may stop while it copies a replica anew.
        """
        fail = self._world.fail
        if self.files_set_aside() and not self.may_diverge:
            fail("the metadata of a node has forked")
        machines = self._cluster.machines
        topic = self._cluster.final_topic
        assert topic is not None
        for number, partition_state in enumerate(topic.partitions):
            replicas = partition_state.replicas
            copies = {name: bytes_of(machines[name], number, "messages") for name in replicas}
            replicas = tuple(sorted(replicas, key=lambda name: -len(copies[name])))
            whole = copies[replicas[0]]
            for copy in copies.values():
                if copy != whole and not (self.may_diverge and whole.startswith(copy)):
                    fail(f"messages of {number} differ in the end")
            for name in replicas[1:]:
                events = [
                    bytes_of(machines[each], number, "events") for each in (replicas[0], name)
                ]
                one, other = from_same_start(*events)
                least = min(len(one), len(other))
                if one[:least] != other[:least]:
                    fail(f"events of {number} differ in the end")
            values = [name_of(m) for m in messages_of(machines[replicas[0]], number)]
            if len(values) != len(set(values)):
                fail(f"something is stored twice in {number}")
            for value, (partition, offset) in self._books.acknowledged.items():
                if partition == number and values[offset : offset + 1] != [value]:
                    fail(f"{value!r} was acknowledged at {offset} of {number}, and is not there")
            for (partition, offset), value in self._books.shown.items():
                if partition == number and values[offset : offset + 1] != [value]:
                    fail(f"{value!r} was shown at {offset} of {number}, and is not there")
        missing = self._books.acknowledged.keys() - self._books.delivered.keys() - died
        if missing:
            fail(f"{len(missing)} acknowledged messages were never delivered: {min(missing)!r}")


def _ends(process: Process, key: PartitionKey) -> object:
    if not process.is_ready or process.is_dead:
        return None
    replica = process.cluster_node.replicas.get(key)
    if replica is None:
        return None
    if replica.as_leader is not None:
        return replica.as_leader.progress.ends
    return None if replica.as_follower is None else replica.as_follower.position.ends


def _followed_min_insync(process: Process) -> int | None:
    """Return the ``min_insync`` that a node follows, None if it is behind its metadata."""
    state = process.cluster_node.state
    topic = state.topics.get(TOPIC)
    if topic is None or process.cluster_node.freshness.reconciled_version != state.version:
        return None
    return topic.min_insync
