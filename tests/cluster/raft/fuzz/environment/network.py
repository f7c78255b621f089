"""Links between nodes that behave as TCP does, and break as networks do.

A connection delivers in order or not at all. A cut holds back what is under way in its direction,
as retransmission does, until it heals or the connection is given up; what was under way is then
lost. With ``crossing``, what was under way when a connection ended may still come, late, twice
and in any order: a receiver that has a new connection can still read the old one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from tests.cluster.raft.fuzz.environment.world import World
from tests.cluster.raft.fuzz.libraries.library import Message
from tests.support.storage.disk import SimulatedCrash

SEND_S = 0.001  # what a send costs the sender


@dataclass(slots=True)
class Direction:
    """One way of a connection."""

    last_s: float = 0.0
    under_way: dict[int, Message] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)


class Connection:
    """A connection of two ends, each of which learns by itself that it ended."""

    def __init__(self, first: Endpoint, second: Endpoint) -> None:
        self.ends = (first, second)
        self.broken = False
        self.ways = {(first.id, second.id): Direction(), (second.id, first.id): Direction()}


class Endpoint(Transport):
    """A node's side of the network, as the library asks for it."""

    def __init__(
        self, network: Network, sync_obj: object, self_node: Node, other_nodes: set[Node]
    ) -> None:
        super().__init__(sync_obj, self_node, other_nodes)
        self.network = network
        self.id: str = self_node.id
        self.peers: dict[str, Node] = {node.id: node for node in other_nodes}
        self.open: dict[str, Connection] = {}
        self.run: Callable[[Callable[[], None]], None] = lambda call: call()
        self.dying: Callable[[], bool] = lambda: False

    def tryGetReady(self) -> None:
        return

    def waitReady(self) -> None:
        return

    def addNode(self, node: Node) -> None:
        self.peers[node.id] = node

    def dropNode(self, node: Node) -> None:
        self.peers.pop(node.id, None)
        connection = self.open.pop(node.id, None)
        if connection is not None:
            self.network.end(connection)
            self._onNodeDisconnected(node)

    def send(self, node: Node, message: Message) -> bool:
        if self.dying():
            raise SimulatedCrash
        connection = self.open.get(node.id)
        if connection is None:
            return False
        self.network.post(connection, self.id, node.id, message)
        return True

    def destroy(self) -> None:
        self.network.leave(self)

    def connected(self, connection: Connection, peer: str) -> None:
        if peer in self.peers:
            self.open[peer] = connection
            self._onNodeConnected(self.peers[peer])
        else:  # dropped meanwhile
            self.network.end(connection)

    def received(self, peer: str, message: Message) -> None:
        if peer in self.peers:
            self._onMessageReceived(self.peers[peer], dict(message))

    def disconnected(self, connection: Connection, peer: str) -> None:
        if self.open.get(peer) is connection:
            del self.open[peer]
            if peer in self.peers:
                self._onNodeDisconnected(self.peers[peer])


class Network:
    """All endpoints that are up, and what is between them."""

    def __init__(self, world: World, *, latency_s: float, crossing: bool) -> None:
        self.world = world
        self.latency_s = latency_s
        self.crossing = crossing
        self.patience_s = 2.0
        self.cut: set[tuple[str, str]] = set()
        self.slow: dict[tuple[str, str], float] = {}
        self.on_send: Callable[[str, Message], Message] = lambda _source, message: message
        self._endpoints: dict[str, Endpoint] = {}
        self._random = world.stream("network")
        self._number = 0
        self._dial()

    def join(self, endpoint: Endpoint) -> None:
        self._endpoints[endpoint.id] = endpoint

    def leave(self, endpoint: Endpoint) -> None:
        """Take an endpoint away at once; its peers learn of it as they do of a broken link."""
        if self._endpoints.get(endpoint.id) is endpoint:
            del self._endpoints[endpoint.id]
        connections = list(endpoint.open.values())
        endpoint.open.clear()
        for connection in connections:
            self.end(connection)

    def up(self) -> list[str]:
        return sorted(self._endpoints)

    def post(self, connection: Connection, source: str, target: str, message: Message) -> None:
        world, way = self.world, connection.ways[source, target]
        assert world.host is not None
        world.host.work(SEND_S)
        message = self.on_send(source, message)
        if connection.broken:
            return  # the sender has not noticed yet
        self._number += 1
        way.under_way[self._number] = message
        delay_s = self._random.expovariate(1 / self.latency_s) + self.slow.get((source, target), 0)
        way.last_s = max(way.last_s + 1e-6, world.now + delay_s)
        self._schedule(connection, source, target, self._number, way.last_s - world.now)

    def end(self, connection: Connection) -> None:
        """Break a connection; each end learns of it after a while."""
        if connection.broken:
            return
        connection.broken = True
        for (source, target), way in connection.ways.items():
            if self.crossing:
                for number in way.under_way:
                    for _ in range(self._random.choice([0, 0, 1, 1, 2])):
                        self.world.counts["messages across connections"] += 1
                        late_s = self._random.uniform(0, 1.5)
                        self._schedule(connection, source, target, number, late_s)
            else:
                self.world.counts["messages lost"] += len(way.under_way)
                way.under_way.clear()
        for end in connection.ends:
            peer = next(e.id for e in connection.ends if e is not end)
            late_s = self._random.choice([0.0, 0.0, self._random.uniform(0, 0.5)])
            self.world.after(late_s, lambda e=end, p=peer: self._tell_end(e, connection, p))

    def block(self, ways: set[tuple[str, str]]) -> None:
        """Cut directions; who waits too long for an answer gives the connection up."""
        self.cut |= ways
        for source, target in sorted(ways):
            endpoint = self._endpoints.get(source) or self._endpoints.get(target)
            if endpoint is None:
                continue
            peer = target if endpoint.id == source else source
            connection = endpoint.open.get(peer)
            if connection is not None:
                late_s = self._random.uniform(0.1, 1) * self.patience_s
                self.world.after(late_s, lambda c=connection: self._give_up(c))

    def heal(self) -> None:
        self.cut.clear()
        self.slow.clear()
        for endpoint in list(self._endpoints.values()):
            for connection in endpoint.open.values():
                for (source, target), way in connection.ways.items():
                    held, way.held = way.held, []
                    for number in held:
                        way.last_s = max(way.last_s, self.world.now) + 1e-6
                        late_s = way.last_s - self.world.now
                        self._schedule(connection, source, target, number, late_s)

    def reset(self, share: float) -> None:
        """Break this share of all connections."""
        for endpoint in list(self._endpoints.values()):
            for connection in list(endpoint.open.values()):
                if self._random.random() < share:
                    self.end(connection)

    def _give_up(self, connection: Connection) -> None:
        if any(way in self.cut for way in connection.ways):
            self.end(connection)

    def _dial(self) -> None:
        """Connect whoever wants one another and can reach each other."""
        ids = self.up()
        for first in ids:
            for second in ids:
                if first < second and not {(first, second), (second, first)} & self.cut:
                    self._connect(self._endpoints[first], self._endpoints[second])
        self.world.after(self._random.uniform(0.05, 0.25), self._dial)

    def _connect(self, first: Endpoint, second: Endpoint) -> None:
        if second.id not in first.peers or first.id not in second.peers:
            return
        if first.id in second.open and second.id in first.open:
            return  # both think that they are connected
        for end, peer in ((first, second), (second, first)):
            if peer.id in end.open:
                self.end(end.open[peer.id])
        connection = Connection(first, second)
        for end, peer in ((first, second), (second, first)):
            if self._endpoints.get(end.id) is end:
                end.run(lambda e=end, p=peer: e.connected(connection, p.id))

    def _tell_end(self, endpoint: Endpoint, connection: Connection, peer: str) -> None:
        if self._endpoints.get(endpoint.id) is endpoint:
            endpoint.run(lambda: endpoint.disconnected(connection, peer))

    def _schedule(
        self, connection: Connection, source: str, target: str, number: int, late_s: float
    ) -> None:
        self.world.after(late_s, lambda: self._arrive(connection, source, target, number))

    def _arrive(self, connection: Connection, source: str, target: str, number: int) -> None:
        way = connection.ways[source, target]
        if number not in way.under_way:
            return
        if (source, target) in self.cut and not connection.broken:
            way.held.append(number)
            return
        receiver = next(end for end in connection.ends if end.id == target)
        message = way.under_way[number]
        if not connection.broken:
            del way.under_way[number]
        if self._endpoints.get(target) is receiver and (source, target) not in self.cut:
            receiver.run(lambda: receiver.received(source, message))
