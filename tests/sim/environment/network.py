"""What is between machines: TCP connections and HTTP calls, slow, cut, and lost with who has them.

A cut is of one direction between two machines, and of Raft's connections, of requests to the HTTP
port, of answers from it, or of several. A connection delivers in order or not at all. A cut holds
back what is under way, as retransmission does, until it heals or somebody gives the connection up.
A process that ends closes its connections; a machine without power says nothing, and once it is up
again it resets what it does not know.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol

from goq.http.client.errors import ConnectError, ReadTimeout
from goq.http.client.http1 import ClientRequest
from goq.http.client.response_reader import ResponseHeaders, WholeResponse
from tests.sim.environment.loop import Home
from tests.sim.environment.world import World
from tests.support.cluster.replication.loop import HOME

_LATENCY_S = 0.0004
_PATIENCE_S = 3600.0
_LATE = 0.5
HTTP_PORT = 8080
RAFT, REQUEST, ANSWER = "raft", "request", "answer"
"""What is sent: bytes of Raft's connections, requests to an HTTP port, answers from one."""
ALL_KINDS = (RAFT, REQUEST, ANSWER)
_NOBODY = contextvars.copy_context()  # runs though all processes are dead

Answer = tuple[int, Mapping[str, str], bytes]


class HttpServer(Protocol):
    """What answers calls."""

    async def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer: ...


class Wire(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, home: Home, there: str, kind: str) -> None:
        super().__init__()
        self.home = home
        self.there = there
        self.way = home.name, there, kind
        self.protocol: Any = None
        self.peer: Wire
        self.is_over = False
        self.held: list[bytes | None] = []
        self.last_s = 0.0
        self._network = network
        self._waiting_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_over and not self.home.is_dead:
            self._waiting_bytes += len(data)
            self._network.post(self, bytes(data))

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes

    def is_closing(self) -> bool:
        return self.is_over

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.there, 0) if name == "peername" else default

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.is_over and not self.home.is_dead:
            self.is_over = True
            self._network.post(self, None)
            self._network.loop.call_soon(self.protocol.connection_lost, None)

    def delivered(self, data: bytes | None) -> None:
        """Hear that the other machine has got something."""
        self._waiting_bytes -= len(data or b"")

    def arrived(self, data: bytes | None) -> None:
        """Take what came, as the process does when it comes to it; an error ends the connection."""
        if self.is_over:
            return
        if data is None:
            self.is_over = True
            self.protocol.connection_lost(None)
        else:
            try:
                self.protocol.data_received(data)
            except OSError:  # of the disk, by which the node has failed
                self.abort()


class Listening:
    """A port that is listened on; the server that asyncio returns."""

    def __init__(self, network: Network, port: tuple[str, int], factory: Any, home: Home) -> None:
        self.factory = factory
        self.home = home
        self._network = network
        self._port = port

    def is_serving(self) -> bool:
        return self._network.listening.get(self._port) is self

    def close(self) -> None:
        if self.is_serving():
            del self._network.listening[self._port]


Way = tuple[str, str, str]
"""From a machine, to another, for one kind of what is sent."""


def ways(source: str, target: str, kinds: Iterable[str] = ALL_KINDS) -> set[Way]:
    """Return the ways from a machine to another."""
    return {(source, target, kind) for kind in kinds}


class Network:
    """All machines, by name, and what is under way between them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.loop = world.loop
        self.cut: set[Way] = set()
        self.slow: dict[tuple[str, str], float] = {}
        self.off: set[str] = set()
        """Machines without power."""
        self.repeats = 0.0
        """How much of all calls comes twice."""
        self.listening: dict[tuple[str, int], Listening] = {}
        self.http: dict[str, tuple[Home, HttpServer]] = {}
        self._wires: list[Wire] = []
        self._late: list[tuple[Way, Any]] = []
        self._random = world.stream("network")
        self.loop.create_server = self._create_server
        self.loop.create_connection = self._create_connection

    # What happens to it

    def block(self, ways: set[Way]) -> None:
        self.cut |= ways

    def heal(self, ways: set[Way]) -> None:
        self.cut -= ways
        for wire in self._wires:
            if wire.held and wire.way not in self.cut:
                held, wire.held = wire.held, []
                for data in held:
                    self.post(wire, data)
        late, self._late = self._late, []
        for way, call in late:
            if way in self.cut:
                self._late.append((way, call))
            else:
                self._arrive_late(way, call)

    def ended(self, home: Home, *, power: bool) -> None:
        """Take away what a process had; it closes its connections, unless the power went."""
        self.listening = {p: each for p, each in self.listening.items() if each.home is not home}
        self.http = {name: each for name, each in self.http.items() if each[0] is not home}
        if power:
            self.off.add(home.name)
        for wire in self._wires:
            if wire.home is home and not wire.is_over:
                wire.is_over = True
                if not power:
                    self.post(wire, None)
        self._wires = [wire for wire in self._wires if not (wire.is_over and wire.peer.is_over)]

    # Connections, as asyncio has them

    async def _create_server(self, factory: Any, host: str, port: int, **_tls: Any) -> Listening:
        home = HOME.get()
        assert isinstance(home, Home)
        listening = self.listening[home.name, port] = Listening(
            self, (home.name, port), factory, home
        )
        return listening

    async def _create_connection(
        self, factory: Any, host: str, port: int, **_tls: Any
    ) -> tuple[Wire, Any]:
        home = HOME.get()
        assert isinstance(home, Home)
        there, back = (REQUEST, ANSWER) if port == HTTP_PORT else (RAFT, RAFT)
        await self._travel(home.name, host, there)
        listening = self.listening.get((host, port))
        await self._travel(host, home.name, back)
        if listening is None or listening.home.is_dead:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        here, other = Wire(self, home, host, there), Wire(self, listening.home, home.name, back)
        here.peer, other.peer = other, here
        self._wires += (here, other)

        def accept() -> None:
            other.protocol = listening.factory()
            other.protocol.connection_made(other)

        self.loop.call_soon(accept, context=listening.home.context)
        here.protocol = factory()
        here.protocol.connection_made(here)
        return here, here.protocol

    def post(self, wire: Wire, data: bytes | None) -> None:
        """Send bytes, or None for the end, to the other side; they arrive in order."""
        delay_s = self._delay_s(wire.home.name, wire.there)
        wire.last_s = max(wire.last_s + 1e-7, self.loop.time() + delay_s)
        self.loop.call_at(wire.last_s, self._arrive, wire, data, context=_NOBODY)

    def _arrive(self, wire: Wire, data: bytes | None) -> None:
        target = wire.peer
        if wire.way in self.cut or wire.held:
            wire.held.append(data)
            return
        wire.delivered(data)
        if target.home.is_dead:
            if wire.there not in self.off and not wire.is_over:  # the machine resets it
                self.post(target, None)
        else:
            self.loop.call_soon(target.arrived, data, context=target.home.context)

    def _delay_s(self, source: str, target: str) -> float:
        return self._random.expovariate(1 / _LATENCY_S) + self.slow.get((source, target), 0.0)

    async def _travel(self, source: str, target: str, kind: str) -> None:
        """Get to another machine, for ever if it cannot be reached."""
        await asyncio.sleep(self._delay_s(source, target))
        if (source, target, kind) in self.cut or target in self.off:
            await asyncio.sleep(_PATIENCE_S)

    # Calls

    async def call(
        self, source: str, target: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Call another node's HTTP server; ``ConnectError`` where nobody listens.

        Of the requests that a cut holds back, some arrive when it heals, and nobody waits for them.
        """
        way = (source, target, REQUEST)
        if way in self.cut and self._random.random() < _LATE:
            self._late.append((way, (path, headers, body)))
        await self._travel(*way)
        found = self.http.get(target)
        if found is None:
            await self._travel(target, source, ANSWER)
            raise ConnectError("nobody listens")
        home, server = found
        answering = self._spawn(home, server.answer(path, headers, body))
        if self._random.random() < self.repeats:
            self.world.counts["calls repeated"] += 1
            late_s = self._random.uniform(0, 0.5)
            self.loop.call_later(
                late_s, self._repeat, home, server, (path, headers, body), context=_NOBODY
            )
        await asyncio.wait([answering])
        await self._travel(target, source, ANSWER)
        return answering.result()

    def _spawn(self, home: Home, work: Awaitable[Answer]) -> asyncio.Task[Answer]:
        task: asyncio.Task[Answer] = self.loop.create_task(work, context=home.context.copy())
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
        return task

    def _arrive_late(self, way: Way, call: Any) -> None:
        found = self.http.get(way[1])
        if found is not None and not found[0].is_dead:
            self.world.counts["calls that arrived late"] += 1
            self._spawn(found[0], found[1].answer(*call))

    def _repeat(self, home: Home, server: HttpServer, call: Any) -> None:
        if not home.is_dead:
            self._spawn(home, server.answer(*call))


class SimulatedConnections:
    """``goq.cluster.rpc.client.NodeConnections`` over the simulated network."""

    network: Network  # of the world that runs

    def __init__(self, _connections_max: int) -> None:
        home = HOME.get()
        assert isinstance(home, Home)
        self._home = home

    def transport(self, _url: str) -> SimulatedConnections:
        return self

    async def fetch(self, request: ClientRequest) -> WholeResponse:
        first, *lines = request.head.decode("latin-1").split("\r\n")[:-1]
        headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in lines)}
        call = self.network.call(
            self._home.name, request.url.host, first.split(" ")[1], headers, request.body
        )
        try:
            async with asyncio.timeout(request.timeouts.read_s):
                status, answered, body = await call
        except TimeoutError:
            raise ReadTimeout("no answer in time") from None
        pairs = [(name.encode(), value.encode()) for name, value in answered.items()]
        return WholeResponse(status, ResponseHeaders(pairs), body)

    async def close(self) -> None:
        return
