"""A whole node in a thread of the test's process, on a free port and a folder of its own."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from goq import limits
from goq.config.node import Config
from goq.node import Node
from tests.support.node.node_api import NodeApi
from tests.support.node.shifted_clock import ShiftedClock

T = TypeVar("T")

START_S_MAX = 30.0
STOP_S_MAX = 30.0


class RunningNode(NodeApi):
    """A node and how to reach it. Use :func:`running_node`."""

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, Mapping[str, Any]],
        start_partitions: int = limits.START_PARTITIONS,
    ) -> None:
        broker = {"data_dir": data_dir, "listen": "127.0.0.1:0", **settings.get("broker", {})}
        self.data_dir = data_dir
        defaults = {"delivery": {"backoff": {"initial": 0}}, **settings.get("defaults", {})}
        self.clock = ShiftedClock()
        config = Config(**{**settings, "broker": broker, "defaults": defaults})
        self.node = Node(config, self.clock, start_partitions=start_partitions)
        self.url = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="node-under-test", daemon=True)

    def start(self) -> None:
        """Return when the node answers; raise what kept it from starting."""
        self._thread.start()
        assert self._ready.wait(START_S_MAX), "the node did not start in time"
        if self._error is not None:
            self._thread.join(STOP_S_MAX)
            raise self._error

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:
                self._error = error
                self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await self.node.start()
        self.url = self.node.url
        self._ready.set()
        await self._stop.wait()
        await self.node.stop()

    def stop(self) -> None:
        """Stop the node as SIGTERM would; raise what went wrong in stopping."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_S_MAX)
        assert not self._thread.is_alive(), "the node did not stop in time"
        if self._error is not None:
            raise self._error

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.partition("://")[2].rpartition(":")
        return host, int(port)

    def on_loop(self, work: Callable[[], Awaitable[T] | T]) -> T:
        """Run ``work`` in the node's event loop and return what it returns."""
        assert self._loop is not None

        async def run() -> T:
            found = work()
            return await found if isinstance(found, Awaitable) else found

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(START_S_MAX)


@contextmanager
def running_node(
    data_dir: Path | None = None,
    *,
    start_partitions: int = limits.START_PARTITIONS,
    **settings: Mapping[str, Any],
) -> Iterator[RunningNode]:
    """Run a node until the block ends; ``settings`` are sections of the configuration.

    Without ``data_dir`` the node has a folder that goes with it.
    """
    with tempfile.TemporaryDirectory(prefix="goq-test-") as folder:
        node = RunningNode(data_dir or Path(folder) / "data", settings, start_partitions)
        node.start()
        try:
            yield node
        finally:
            node.stop()
