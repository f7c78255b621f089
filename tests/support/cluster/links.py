"""Links between node processes that a test can cut: a TCP proxy before each port of each node.

A link has a source node, a target node and a port kind (HTTP or Raft). Its direction is that of the
bytes, whichever node opened the connection. :class:`Cut` lists what a cut link does with bytes. A
whole port can be closed, too (:class:`Closed`): only then do connects fail as they do without a
proxy, because the kernel accepts before the proxy knows the source.

The source of a connection is the process that holds its other end. Connections of clients have the
source ``CLIENT``.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from enum import Enum, StrEnum, auto
from types import TracebackType
from typing import NamedTuple, TypeVar

from tests.support.cluster.connection_peer import inode_of_peer, is_held_by
from tests.support.node.ports import HOST, reserved_port

CLIENT = ""
_PIECE_BYTES = 64 * 1024
_CALL_S_MAX = 10.0
_QUEUE_FILLERS = 4
_CLOSE_TURNS = 5  # of the event loop, until all transports are closed
T = TypeVar("T")


class Port(StrEnum):
    """The two ports at which nodes reach one another."""

    HTTP = "http"
    RAFT = "raft"


class Cut(Enum):
    """What a cut link does with bytes."""

    LATE = auto()
    """Bytes arrive after :meth:`Links.mend`: TCP sends them again after a network outage."""
    LOST = auto()
    """Connects succeed and bytes vanish. ``mend`` resets connections that have lost bytes."""
    RESET = auto()
    """Open connections are reset at once, new ones after they are accepted."""


class Closed(Enum):
    """What a closed port does with the connects of all sources. Open connections are reset."""

    REFUSING = auto()
    """Connects are refused."""
    SILENT = auto()
    """Connects get no answer: the kernel drops their SYN, for its accept queue is full."""


class Link(NamedTuple):
    """One direction of the connections at one kind of port."""

    source: str
    target: str
    port: Port


class _Gate:
    """The state of a link, changed on the proxy's loop only."""

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self._changed = asyncio.Event()

    def set(self, cut: Cut | None) -> None:
        if cut is not self.cut:
            self.cut = cut
            self._changed.set()
            self._changed = asyncio.Event()

    async def until(self, condition: Callable[[Cut | None], bool]) -> Cut | None:
        """Return the state as soon as the condition holds for it."""
        while not condition(self.cut):
            await self._changed.wait()
        return self.cut

    async def passed(self) -> bool:
        """Return when bytes may go on: True to pass them on, False to lose them.

        Raises ``ConnectionResetError`` for a link that resets.
        """
        cut = await self.until(lambda cut: cut is not Cut.LATE)
        if cut is Cut.RESET:
            raise ConnectionResetError
        return cut is None


class _Listener:
    """The proxy's own port before a node's port. The number stays the same while it is closed."""

    def __init__(self, number: int, accepted: Callable[[socket.socket], None]) -> None:
        self.number = number
        self._accepted = accepted
        self._listening: socket.socket | None = None
        self._queue = contextlib.ExitStack()

    def open(self) -> None:
        """Accept connections."""
        self._queue.close()
        if self._listening is None:
            self._listening = socket.create_server((HOST, self.number))
            self._listening.setblocking(False)
            asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)

    def close(self, how: Closed) -> None:
        """Accept no more connections."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        self._queue.close()
        if how is Closed.SILENT:
            self._queue.enter_context(_full_queue(self.number))

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            self._accepted(listening.accept()[0])


class Links:
    """All links among nodes; ``pid_of`` returns the process of a node, None if it does not run.

    Cuts are in effect when the call returns. Use it as a context manager.
    """

    def __init__(self, pid_of: Callable[[str], int | None]) -> None:
        self._pid_of = pid_of
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links")
        self._reservations = contextlib.ExitStack()
        self._listeners: dict[tuple[str, Port], _Listener] = {}
        self._gates: dict[Link, _Gate] = {}
        self._connections: dict[asyncio.Task[None], Link] = {}

    def __enter__(self) -> Links:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._reservations.close()

    async def _close(self) -> None:
        for listener in self._listeners.values():
            listener.close(Closed.REFUSING)
        await self._reset(lambda _link: True)
        for _ in range(_CLOSE_TURNS):
            await asyncio.sleep(0)

    def before(self, node: str, kind: Port, port: int) -> int:
        """Return a port that leads to a node's port, for other nodes to use.

        It is the ``route`` of ``process_nodes``.
        """
        number = self._reservations.enter_context(reserved_port())
        listener = _Listener(number, lambda accepted: self._accepted(accepted, node, kind, port))

        async def open_port() -> None:
            listener.open()

        self._run(open_port())
        self._listeners[node, kind] = listener
        return number

    def cut(self, source: str, target: str, port: Port | None = None, how: Cut = Cut.LATE) -> None:
        """Cut one direction, of both kinds of ports or of one, until :meth:`mend`."""
        self._run(self._set(_links(source, target, port), how))

    def cut_both(self, one: str, other: str, port: Port | None = None, how: Cut = Cut.LATE) -> None:
        """Cut both directions between two nodes until :meth:`mend`."""
        links = [*_links(one, other, port), *_links(other, one, port)]
        self._run(self._set(links, how))

    def close(self, node: str, port: Port, how: Closed = Closed.REFUSING) -> None:
        """Close a node's port to all other nodes until :meth:`mend`."""

        async def close() -> None:
            self._listeners[node, port].close(how)
            await self._reset(lambda link: (link.target, link.port) == (node, port))

        self._run(close())

    def mend(self) -> None:
        """Mend all links and open all ports."""

        async def mend() -> None:
            for gate in self._gates.values():
                gate.set(None)
            for listener in self._listeners.values():
                listener.open()

        self._run(mend())

    def _run(self, work: Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_CALL_S_MAX)

    async def _set(self, links: list[Link], how: Cut) -> None:
        for link in links:
            self._gate(link).set(how)
        if how is Cut.RESET:
            cut = set(links)
            await self._reset(lambda link: bool({link, _opposite(link)} & cut))

    async def _reset(self, is_meant: Callable[[Link], bool]) -> None:
        ended = [task for task, link in self._connections.items() if is_meant(link)]
        await asyncio.sleep(0)  # a task that is cancelled before it begins would close nothing
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    def _gate(self, link: Link) -> _Gate:
        return self._gates.setdefault(link, _Gate())

    def _accepted(self, accepted: socket.socket, node: str, kind: Port, port: int) -> None:
        link = Link(self._source_of(accepted), node, kind)
        connection = asyncio.create_task(self._carry(accepted, link, port))
        self._connections[connection] = link
        connection.add_done_callback(self._connections.pop)

    async def _carry(self, accepted: socket.socket, link: Link, port: int) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=accepted)
        except BaseException:
            accepted.close()
            raise
        try:
            await self._connect(link, port, reader, writer)
        except (asyncio.CancelledError, OSError):
            _reset(writer)
        finally:
            writer.close()

    async def _connect(
        self, link: Link, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there, back = self._gate(link), self._gate(_opposite(link))
        if not await there.passed():
            await _lose(reader, there)
        its_reader, its_writer = await asyncio.open_connection(HOST, port)
        pumps = [
            asyncio.ensure_future(_pump(reader, its_writer, there)),
            asyncio.ensure_future(_pump(its_reader, writer, back)),
        ]
        try:
            await asyncio.gather(*pumps)
        except BaseException:
            _reset(its_writer)
            raise
        finally:
            its_writer.close()  # before the wait, which may be cancelled
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def _source_of(self, accepted: socket.socket) -> str:
        """Return the node whose process has the other end; ``CLIENT`` if none has."""
        inode = inode_of_peer(accepted)
        for node in {name for name, _ in self._listeners}:
            pid = self._pid_of(node)
            if pid is not None and inode is not None and is_held_by(pid, inode):
                return node
        return CLIENT


def _links(source: str, target: str, port: Port | None) -> list[Link]:
    return [Link(source, target, kind) for kind in ((port,) if port is not None else Port)]


def _opposite(link: Link) -> Link:
    return Link(link.target, link.source, link.port)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: _Gate) -> None:
    """Pass bytes on, and their end; raise ``OSError`` if the connection breaks on one side."""
    piece = None
    while piece != b"":
        try:
            piece = await reader.read(_PIECE_BYTES)
        except OSError:
            await gate.passed()  # a reset is late, too
            raise
        if not await gate.passed():
            await _lose(reader, gate)
        if piece:
            writer.write(piece)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


async def _lose(reader: asyncio.StreamReader, gate: _Gate) -> None:
    """Drop bytes until the link is mended; then raise ``ConnectionResetError``."""

    async def drop() -> None:
        with contextlib.suppress(OSError):
            while await reader.read(_PIECE_BYTES):
                pass

    dropping = asyncio.ensure_future(drop())
    try:
        await gate.until(lambda cut: cut is not Cut.LOST)
    finally:
        dropping.cancel()
        await asyncio.gather(dropping, return_exceptions=True)
    raise ConnectionResetError


def _reset(writer: asyncio.StreamWriter) -> None:
    """Send a reset instead of an end."""
    held = writer.get_extra_info("socket")
    if held is not None and not writer.transport.is_closing():
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextlib.contextmanager
def _full_queue(number: int) -> Iterator[None]:
    """Listen on a port, accept nothing, and fill the accept queue."""
    with contextlib.ExitStack() as sockets:
        listening = sockets.enter_context(socket.socket())
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, number))
        listening.listen(0)
        for _ in range(_QUEUE_FILLERS):
            filler = sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((HOST, number))
        yield
