"""A whole node in a thread of the test's process, on a free port and a folder of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from goq import limits
from goq.config.node import Config
from goq.embedded import NodeThread
from goq.node import NodeServer
from tests.support.api.secret_watch import WATCH
from tests.support.node.node_api import NodeApi
from tests.support.node.shifted_clock import ShiftedClock
from tests.support.paths import fast_folder

T = TypeVar("T")

START_S_MAX = 30.0


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
        config = Config.read({**settings, "broker": broker, "defaults": defaults})
        self._asks_for_tokens = config.asks_for_tokens
        self.node = NodeServer(config, self.clock, start_partitions=start_partitions)
        self._thread = NodeThread(self.node)

    @property
    def url(self) -> str:
        """The address of the node."""
        return self._thread.url

    def start(self) -> None:
        """Return when the node answers; raise what kept it from starting."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the node as SIGTERM would; raise what went wrong in stopping."""
        self._thread.stop()
        if self._asks_for_tokens:
            WATCH.check_node(self.data_dir)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.partition("://")[2].rpartition(":")
        return host, int(port)

    def on_loop(self, work: Callable[[], Awaitable[T] | T]) -> T:
        """Run ``work`` in the node's event loop and return what it returns."""
        return self._thread.call(work, START_S_MAX)


@contextmanager
def running_node(
    data_dir: Path | None = None,
    *,
    start_partitions: int = limits.START_PARTITIONS,
    **settings: Mapping[str, Any],
) -> Iterator[RunningNode]:
    """Run a node until the block ends; ``settings`` are sections of the configuration.

    Without ``data_dir`` the node has a folder in memory that goes with it.
    """
    with fast_folder("goq-test-") as folder:
        node = RunningNode(data_dir or folder / "data", settings, start_partitions)
        node.start()
        try:
            yield node
        finally:
            node.stop()
