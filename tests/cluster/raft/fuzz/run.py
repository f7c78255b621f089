"""One seed: faults for a while, then peace, and what must hold at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.raft.fuzz.clients import Clients
from tests.cluster.raft.fuzz.cluster import Cluster
from tests.cluster.raft.fuzz.environment.network import Network
from tests.cluster.raft.fuzz.environment.patches import library_in
from tests.cluster.raft.fuzz.environment.world import World
from tests.cluster.raft.fuzz.libraries.library import Library
from tests.cluster.raft.fuzz.nemesis import Nemesis
from tests.cluster.raft.fuzz.operator import Operator
from tests.cluster.raft.fuzz.profile import Profile
from tests.cluster.raft.fuzz.watch import Watch

PEACE_S = 30.0  # more than a group may need to be of one mind again


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    seed: int
    broken: list[str]
    history: str
    counts: Counter[str]


def run(
    seed: int, library: Library, profile: Profile, *, log: Callable[[str], None] | None = None
) -> Outcome:
    """Run one seed to its end, or to the first promise that is broken."""
    world = World(seed, log=log)
    with library_in(world), library.sized(profile.sizes):
        watch = Watch(world)
        network = Network(world, latency_s=profile.latency_s, crossing=profile.crossing)
        cluster = Cluster(world, watch, network, library, profile.sizes)
        operator = Operator(cluster, profile.nodes)
        clients = Clients(cluster, profile)
        nemesis = Nemesis(cluster, operator, profile)
        operator.keep_running()
        clients.keep_proposing(profile.faults_s)
        nemesis.keep_breaking(profile.faults_s)
        world.run_until(profile.faults_s, lambda: bool(watch.broken))
        if not watch.broken:
            _make_peace(cluster, nemesis)
            _converge(cluster, operator, clients, watch)
        return Outcome(seed, watch.broken, world.history(), world.counts)


def _make_peace(cluster: Cluster, nemesis: Nemesis) -> None:
    world = cluster.world
    world.note("peace")
    cluster.network.heal()
    world.after(3.0, cluster.network.heal)  # the last faults' own ends are over by then
    for member in cluster.members.values():
        member.disk.crash_at = None
        nemesis.mend_disk(member)
        member.paused_until_s = 0.0
        cluster.resume(member)


def _converge(cluster: Cluster, operator: Operator, clients: Clients, watch: Watch) -> None:
    """Wait until a proposal through each node is acknowledged, and everyone applied all."""
    world, deadline_s = cluster.world, cluster.world.now + PEACE_S
    requests: dict[str, set[int]] = {}

    def ask_all() -> None:
        for member in cluster.up():
            if not requests.get(member.id, set()) & watch.acknowledged:
                requests.setdefault(member.id, set()).add(clients.propose_new(member))
        world.after(1.0, ask_all)

    def agreed() -> bool:
        if watch.broken:
            return True
        members = [cluster.members[node_id] for node_id in operator.member_ids]
        return (
            operator.idle
            and all(member.reached.count == len(watch.line) for member in members)
            and all(requests.get(i, set()) & watch.acknowledged for i in operator.member_ids)
        )

    ask_all()
    world.run_until(deadline_s, agreed)
    if not agreed():
        state = {i: cluster.members[i].reached.count for i in operator.member_ids}
        watch.fail(f"no agreement in time: {state} of {len(watch.line)} applied")
