"""A node in this process: what ``goq.Node`` and ``goq.open`` start.

The node runs in a daemon thread with an event loop of its own. It sets no signal handlers, no log
handlers and no limits of the process. Clients reach it over a port of this machine, as any node.
Nodes that are open when the interpreter ends are closed. A process that is killed is to the data
folder what a killed node is: what was acknowledged is there at the next start.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from goq.config.sources import config_of
from goq.errors import Unavailable
from goq.event_loop import new_event_loop
from goq.node import NodeServer

if TYPE_CHECKING:
    from goq.client import Client

T = TypeVar("T")
_ANY_PORT: Final = "127.0.0.1:0"
_START_S_MAX: Final = 60.0
_STOP_S_MAX: Final = 60.0


class NodeThread:
    """A thread that runs a node server; :meth:`start` it, then :meth:`stop` it."""

    def __init__(self, server: NodeServer) -> None:
        self._server = server
        self.url = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._is_ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="goq-node", daemon=True)

    def start(self) -> None:
        """Return when the node answers; raise what kept it from starting."""
        self._thread.start()
        if not self._is_ready.wait(_START_S_MAX):
            raise Unavailable(f"the node was not ready within {_START_S_MAX:g} s")
        if self._error is not None:
            self._thread.join(_STOP_S_MAX)
            raise self._error

    def stop(self) -> None:
        """Stop the node as SIGTERM would; raise what went wrong."""
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # its loop has just ended by itself
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_STOP_S_MAX)
        if self._thread.is_alive():
            raise Unavailable(f"the node did not stop within {_STOP_S_MAX:g} s")
        if self._error is not None:
            raise self._error

    def call(self, work: Callable[[], Awaitable[T] | T], seconds: float = _START_S_MAX) -> T:
        """Run ``work`` in the node's event loop; return its result."""
        assert self._loop is not None

        async def run() -> T:
            found = work()
            return await found if isinstance(found, Awaitable) else found

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(seconds)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._error = error
            self._is_ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        await self._server.start()
        self.url = self._server.url
        self._is_ready.set()
        await self._stopping.wait()
        await self._server.stop()


class Node:
    """A node in this process, on a data folder; it is ready when the constructor returns.

    Example::

        with goq.Node("./data") as node, node.client() as q:
            q.publish("orders", b"two teapots")

    ``listen`` is its address, by default a free port of this machine. ``settings`` are settings of
    the configuration by dotted name, as ``{"defaults.topic.partitions": 1}``; neither environment
    nor files count. One process at a time may use a folder. A forked child must not use the node.

    Raises ``DataDirLocked``, ``UsageError``, ``CorruptData``.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        *,
        listen: str = _ANY_PORT,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.data_dir = Path(data_dir)
        broker = {"broker.data_dir": self.data_dir, "broker.listen": listen}
        self._thread = NodeThread(NodeServer(config_of({**broker, **(settings or {})})))
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process_id = os.getpid()
        self._is_closed = False
        self._thread.start()
        _open_nodes.add(self)

    @classmethod
    def temporary(
        cls, *, listen: str = _ANY_PORT, settings: Mapping[str, object] | None = None
    ) -> Node:
        """Return a node on a folder that :meth:`close` removes; by default nothing is synced."""
        folder = tempfile.TemporaryDirectory(prefix="goq-")
        unsynced = {"defaults.topic.fsync": "never", **(settings or {})}
        try:
            node = cls(Path(folder.name) / "data", listen=listen, settings=unsynced)
        except BaseException:
            folder.cleanup()
            raise
        node._folder = folder
        return node

    @property
    def url(self) -> str:
        """The address of the node."""
        return self._thread.url

    def client(self, **options: Any) -> Client:
        """Return a client of the node, with the options of :class:`goq.Client`."""
        from goq.client import Client

        return Client(self.url, **options)

    def close(self) -> None:
        """Stop the node: requests under way are answered, and everything is durable."""
        if self._is_closed or os.getpid() != self._process_id:
            return
        self._is_closed = True
        _open_nodes.discard(self)
        try:
            self._thread.stop()
        finally:
            if self._folder is not None:
                self._folder.cleanup()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()


_open_nodes: set[Node] = set()


def _close_open_nodes() -> None:
    for node in [*_open_nodes]:
        with suppress(Exception):
            node.close()


# Before the pools of threads end, which the node needs; atexit would be after them.
getattr(threading, "_register_atexit", atexit.register)(_close_open_nodes)
