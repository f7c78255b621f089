"""Links between nodes that can be cut: a proxy before each port that nodes reach one another at.

Which node a connection comes from is looked up in ``/proc``: the process that holds its other end.
What is sent over a cut link is not lost but late, as with TCP, which sends it again: it arrives
when the link is mended, if both ends have waited so long.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_PIECE_BYTES = 64 * 1024
_START_S_MAX = 10.0


class Links:
    """All links among nodes; ``pid_of`` says which process a node is, None if it does not run."""

    def __init__(self, pid_of: Callable[[str], int | None]) -> None:
        self._pid_of = pid_of
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links")
        self._servers: list[asyncio.Server] = []
        self._nodes: set[str] = set()
        self._open: dict[tuple[str, str], asyncio.Event] = {}
        self._pumps: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Links:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_START_S_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def before(self, node: str, port: int) -> int:
        """Return a port that leads to a node's port, for other nodes to use."""
        self._nodes.add(node)
        serving = self._serve(node, port)
        return asyncio.run_coroutine_threadsafe(serving, self._loop).result(_START_S_MAX)

    def cut(self, source: str, target: str) -> None:
        """Let nothing through from one node to another, until :meth:`mend`."""
        self._loop.call_soon_threadsafe(lambda: self._gate(source, target).clear())

    def mend(self) -> None:
        """Let everything through again."""
        self._loop.call_soon_threadsafe(lambda: [gate.set() for gate in self._open.values()])

    def _gate(self, source: str, target: str) -> asyncio.Event:
        gate = self._open.get((source, target))
        if gate is None:
            gate = self._open[source, target] = asyncio.Event()
            gate.set()
        return gate

    async def _serve(self, node: str, port: int) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            pump = asyncio.current_task()
            assert pump is not None
            self._pumps.add(pump)
            try:
                await self._connect(node, port, reader, writer)
            except asyncio.CancelledError:
                pass  # everything ends; the loop would complain of a connection that was cancelled
            finally:
                self._pumps.discard(pump)
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _connect(
        self, node: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        source = self._source_of(writer.get_extra_info("peername")[1])
        there, back = self._gate(source, node), self._gate(node, source)
        await there.wait()
        try:
            its_reader, its_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        try:
            await asyncio.gather(_pump(reader, its_writer, there), _pump(its_reader, writer, back))
        finally:
            its_writer.close()

    def _source_of(self, port: int) -> str:
        """Return the node whose process has a socket at a port; "" if none has."""
        inode = _inode_of(port)
        for node in self._nodes:
            pid = self._pid_of(node)
            if pid is not None and inode is not None and _holds(pid, inode):
                return node
        return ""


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
) -> None:
    """Pass on what comes, its end too; a connection that breaks on one side breaks on both."""
    try:
        while True:
            piece = await reader.read(_PIECE_BYTES)
            await gate.wait()
            if not piece:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                return
            writer.write(piece)
            await writer.drain()
    except OSError:
        await gate.wait()
        writer.transport.abort()


def _inode_of(port: int) -> str | None:
    """Return the inode of the loopback's socket that is bound to a port and connected."""
    address = f"{int.from_bytes(socket.inet_aton('127.0.0.1'), 'little'):08X}:{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == address and fields[9] != "0":
            return fields[9]
    return None


def _holds(pid: int, inode: str) -> bool:
    wanted = f"socket:[{inode}]"
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(_leads_to(entry.path) == wanted for entry in entries)
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return False  # it has ended


def _leads_to(link: str) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""
