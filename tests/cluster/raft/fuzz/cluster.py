"""The nodes of a group and their lives: started, stepped, paused, cut off from power, replaced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from pysyncobj import SyncObj

from tests.cluster.raft.fuzz.environment.network import Endpoint, Network
from tests.cluster.raft.fuzz.environment.world import Host, World
from tests.cluster.raft.fuzz.libraries.library import (
    Callback,
    Library,
    Message,
    Place,
    Sizes,
    inside,
)
from tests.cluster.raft.fuzz.machine import Machine, Reached
from tests.cluster.raft.fuzz.watch import Life, Watch
from tests.support.storage.disk import SimulatedCrash, SimulatedDisk

TICK_S = 0.025


class Member:
    """A node's machine, disk and process; ``raft`` is none while it is down."""

    def __init__(self, cluster: Cluster, self_id: str, other_ids: list[str]) -> None:
        world = cluster.world
        self.id = self_id
        self.other_ids = other_ids
        self.random = world.stream(f"member {self_id}")
        self.host = Host(world, self.random.uniform(0.97, 1.03))
        self.disk = SimulatedDisk(self.random)
        self.raft: SyncObj | None = None
        self.machine = Machine()
        self.life = Life(cluster.watch, self_id)
        self.reached = Reached()
        self.paused_until_s = 0.0
        self.waiting: list[Callable[[], None]] = []  # for the end of a pause
        self.ticking = False  # a tick is to come at once
        self._cluster = cluster

    # What the machine tells

    def applied(self, command: str, before: Reached, answer: str) -> None:
        self.reached = before.after(command)
        self._cluster.watch.applied(self.id, command, before, answer)

    def restored(self, reached: Reached) -> None:
        self.reached = reached
        self._cluster.world.counts["snapshots restored"] += 1
        self._cluster.watch.restored(self.id, reached)


class Cluster:
    """All nodes that there are, whether they are members or not yet or no more."""

    def __init__(
        self, world: World, watch: Watch, network: Network, library: Library, sizes: Sizes
    ) -> None:
        self.world = world
        self.watch = watch
        self.network = network
        self.members: dict[str, Member] = {}
        self.library = library
        self._sizes = sizes
        self._random = world.stream("cluster")
        network.on_send = self._on_send

    def add(self, self_id: str, other_ids: list[str]) -> Member:
        member = self.members[self_id] = Member(self, self_id, other_ids)
        return member

    def up(self) -> list[Member]:
        return [member for member in self.members.values() if member.raft is not None]

    def leader(self) -> Member | None:
        """Return who leads in the highest term, if anyone does."""
        leading = [m for m in self.up() if m.raft is not None and m.raft._isLeader()]
        return max(leading, key=lambda m: m.raft.raftCurrentTerm, default=None)

    def start(self, member: Member) -> None:
        if member.raft is not None:
            return
        self.world.note(f"{member.id} starts with {' '.join(member.other_ids)}")
        member.host.reboot(member.random)
        member.paused_until_s = 0.0
        member.waiting.clear()
        if not self.library.keeps_machine:
            member.machine = Machine()
        member.reached = member.machine.watched_by(member)
        self._enter(member, lambda: self._boot(member))
        raft = member.raft
        if raft is not None:
            self._tick_again(member, raft)

    def _boot(self, member: Member) -> None:
        endpoints: list[Endpoint] = []

        def transport(*args: object) -> Endpoint:
            endpoints.append(Endpoint(self.network, *args))
            return endpoints[0]

        raft = self.library.boot(
            Place(
                member.id,
                member.other_ids,
                member.disk,
                member.machine,
                transport,
                self._sizes,
                Random(member.random.random()),
            )
        )
        endpoint = endpoints[0]
        endpoint.dying = partial(_is_dying, member.disk)
        endpoint.run = lambda call: self.run(member, raft, call, soon=True)
        member.raft = raft
        self.network.join(endpoint)

    def crash(self, member: Member, *, power: bool) -> None:
        """End a process; with ``power`` all that it did not sync is at risk."""
        if member.raft is None:
            return
        raft, member.raft = member.raft, None
        self.world.note(f"{member.id} {'loses power' if power else 'is killed'}")
        self.world.counts["power losses" if power else "kills"] += 1
        member.other_ids = sorted(node.id for node in raft.otherNodes)
        if self.library.keeps_members and self._random.random() < 0.5:
            member.other_ids = []
        self.network.leave(inside(raft, "transport"))
        self._end(member, power=power)
        member.life.ended()

    def run(
        self, member: Member, raft: SyncObj, call: Callable[[], None], *, soon: bool = False
    ) -> None:
        """Run some code of a node, later if it is paused, not at all if that life is over."""
        if member.raft is not raft:
            return
        if member.paused_until_s > self.world.now:
            member.waiting.append(lambda: self.run(member, raft, call, soon=soon))
            return
        self._enter(member, call)
        if member.raft is raft and soon and not member.ticking:
            member.ticking = True
            self.world.after(self._random.uniform(0, 0.004), lambda: self._tick(member, raft))

    def pause(self, member: Member, seconds: float) -> None:
        """Let a process stand still; all that comes waits for it in order."""
        member.paused_until_s = max(member.paused_until_s, self.world.now + seconds)
        self.world.after(seconds, lambda: self.resume(member))

    def resume(self, member: Member) -> None:
        """Let a process go on if its pause is over."""
        if member.paused_until_s <= self.world.now:
            waiting, member.waiting = member.waiting, []
            for call in waiting:
                call()

    def propose(self, member: Member, command: str, callback: Callback) -> None:
        raft = member.raft
        if raft is not None:
            propose = partial(self.library.propose, raft, command, callback)
            self.run(member, raft, propose, soon=True)

    def _tick_again(self, member: Member, raft: SyncObj) -> None:
        if member.paused_until_s <= self.world.now:
            self._tick(member, raft)
        if member.raft is raft:
            wait_s = TICK_S * self._random.uniform(0.8, 1.2)
            self.world.after(wait_s, lambda: self._tick_again(member, raft))

    def _tick(self, member: Member, raft: SyncObj) -> None:
        def tick() -> None:
            member.ticking = False
            raft.doTick(0.0)
            member.life.look(raft)

        self.run(member, raft, tick)

    def _enter(self, member: Member, call: Callable[[], None]) -> None:
        host_before, self.world.host = self.world.host, member.host
        try:
            call()
        except SimulatedCrash:
            self.world.counts["crashes within an operation"] += 1
            self._died(member, power=member.random.random() < 0.5)
        except self.library.stops as error:
            self.world.note(f"{member.id} stops: {error}")
            self.world.counts["stops"] += 1
            self._died(member, power=False)
        except self.library.bears as error:
            self.world.note(f"{member.id} bears: {error!r}")
            self.world.counts["exceptions"] += 1
            if member.raft is not None:
                member.life.look(member.raft)
        except Exception as error:
            self.watch.fail(f"{member.id} raised {error!r}")
        finally:
            self.world.host = host_before

    def _died(self, member: Member, *, power: bool) -> None:
        if member.raft is None:  # while it started
            self._end(member, power=power)
            self.world.note(f"{member.id} could not start")
        self.crash(member, power=power)

    @staticmethod
    def _end(member: Member, *, power: bool) -> None:
        member.disk.crash(power=power)
        if power:
            member.machine.lose_power(member.random)

    def _on_send(self, source: str, message: Message) -> Message:
        self.world.note(f"{source} sends {message['type']} of {message.get('term')}")
        if message["type"] == "next_node_idx" and message["success"]:
            member = self.members[source]
            if member.raft is not None:
                log = inside(member.raft, "raftLog")[:]
                member.life.confirms(message["next_node_idx"] - 1, log)
        return self.library.over_the_wire(message)


def _is_dying(disk: SimulatedDisk) -> bool:
    return disk.crash_at is not None and disk.operations >= disk.crash_at
