"""What of a node outlives its processes: the disk, the databases and the clock of its machine."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from goq.storage import node_db as nodedb
from tests.sim.environment.databases import Stored
from tests.sim.environment.world import World
from tests.support.cluster.replication.node import LoopClock
from tests.support.storage.disk import SimulatedDisk


class Disk(SimulatedDisk):
    """A disk that says at once when an operation is the process's last."""

    def __init__(self, random: Random, counts: Counter[str]) -> None:
        super().__init__(random)
        self._counts = counts
        self.on_crash: Callable[[], None] = lambda: None

    def begin(self, operation: str, path: Path) -> bool:
        if operation == "truncate" and path.suffix == ".log":
            self._counts["logs cut"] += 1
        is_last = super().begin(operation, path)
        if is_last:
            self.on_crash()
        return is_last


class NodeDatabase:
    """``node.db`` of a machine, in memory: durable when a call returns."""

    def __init__(self, folder: Path) -> None:
        in_memory = partial(sqlite3.connect, ":memory:", check_same_thread=False)
        simulated = {**vars(sqlite3), "connect": lambda _path, **_options: in_memory()}
        with patch.object(nodedb, "sqlite3", SimpleNamespace(**simulated)):
            self._db = nodedb.NodeDb(folder)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """Return a method of a ``MetadataStore``: the one of ``NodeDb``, done at once."""
        method = getattr(self._db, name)

        async def call(*arguments: Any) -> Any:
            return method(*arguments)

        return call

    async def close(self) -> None:
        """Leave it to the next process."""

    def end(self) -> None:
        self._db.close()


class MachineClock(LoopClock):
    """The wall clock of a machine: ahead by some time, and of a rate of its own."""

    def __init__(self, world: World) -> None:
        super().__init__(world.loop)
        self.rate = 1.0
        self.latest_us = 0
        """The latest time that it has shown."""

    def wall_us(self) -> int:
        now_us = self.now_us + int(self._loop.time() * 1_000_000 * self.rate)
        self.latest_us = max(self.latest_us, now_us)
        return now_us


class Machine:
    """A machine with one node on it, whose data lie in ``folder``.

    ``number`` tells machines of one name apart, which have one after the other.
    """

    def __init__(self, world: World, name: str, folder: Path, number: int = 0) -> None:
        self.name = name
        own = f"{name} {number}" if number else name
        self.counts = world.counts
        self.folder = folder
        self.random = world.stream(f"machine {own}")
        self.disk = Disk(world.stream(f"disk {own}"), world.counts)
        self.disk.make_dir(folder)
        self.database = Stored()
        self.local = NodeDatabase(folder)
        self.clock = MachineClock(world)
        self.disk_late_s = 0.0

    @property
    def unsynced_bytes(self) -> int:
        """How much a loss of power may take."""
        inodes = self.disk._inodes.values()
        return 512 * sum(len(inode.dirty | inode.forgotten) for inode in inodes)

    def lose_power(self) -> None:
        self.disk.crash(power=True)
        self.database.lose_power(self.random)
