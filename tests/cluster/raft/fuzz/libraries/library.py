"""What the simulation asks of a Raft library, and what it gives to one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from pysyncobj import SyncObj, SyncObjConf

from tests.cluster.raft.fuzz.machine import Machine
from tests.support.cluster.raft.node import raft_conf
from tests.support.storage.disk import SimulatedDisk

Callback = Callable[[Any, int], None]
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How small things are: the smaller, the more happens between two of them."""

    compaction_entries: int
    batch_bytes: int
    snapshot_chunk_bytes: int
    journal_bytes: int
    in_flight_entries: int

    def conf(self) -> SyncObjConf:
        return raft_conf(
            connectionRetryTime=0.2,
            logCompactionMinEntries=self.compaction_entries,
            logCompactionMinTime=3600,
            appendEntriesBatchSizeBytes=self.batch_bytes,
            logCompactionBatchSize=self.snapshot_chunk_bytes,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node starts: its id, the other members, its disk, its machine and its network."""

    self_id: str
    other_ids: list[str]
    disk: SimulatedDisk
    machine: Machine
    transport_class: Callable[..., Any]
    sizes: Sizes
    random: Random


class Library(Protocol):
    """A way to run a node: of goq, or as the library is sold."""

    keeps_machine: bool  # whether the machine outlives the process
    keeps_members: bool  # whether a node knows by itself who the members are when it starts again
    stops: tuple[type[Exception], ...]  # what ends the process
    bears: tuple[type[Exception], ...]  # what its owner logs, and goes on

    def sized(self, sizes: Sizes) -> AbstractContextManager[None]: ...

    def boot(self, place: Place) -> SyncObj: ...

    def over_the_wire(self, message: Message) -> Message: ...

    def propose(self, node: SyncObj, command: str, callback: Callback) -> None: ...

    def add_member(self, node: SyncObj, node_id: str, callback: Callback) -> None: ...

    def remove_member(self, node: SyncObj, node_id: str, callback: Callback) -> None: ...


def inside(node: SyncObj, name: str) -> Any:
    """Return a private attribute of the library's own class."""
    return getattr(node, f"_SyncObj__{name}")
