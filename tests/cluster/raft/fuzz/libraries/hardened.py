"""The node of goq, its machine on the same simulated disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from pysyncobj import SyncObj

from goq import limits
from goq.cluster.raft import codec
from goq.cluster.raft.pysyncobj.hardened_sync_obj import HardenedSyncObj
from goq.cluster.raft.state_machine.state_machine import Proposal, StateMachineFailed
from goq.errors import CorruptData, StorageFailed, StorageFull
from tests.cluster.raft.fuzz.libraries.library import Callback, Message, Place, Sizes
from tests.cluster.raft.fuzz.machine import Machine
from tests.support.storage.disk import SimulatedDisk

FOLDER = Path("/raft")


class Hardened:
    """Starts nodes of goq's class."""

    keeps_machine = True
    keeps_members = True
    stops = (StorageFailed, CorruptData, StateMachineFailed, OSError)
    bears = (StorageFull,)

    @contextmanager
    def sized(self, sizes: Sizes) -> Iterator[None]:
        with (
            patch.object(limits, "RAFT_JOURNAL_BYTES", sizes.journal_bytes),
            patch.object(limits, "RAFT_JOURNAL_BYTES_MAX", 8 * sizes.journal_bytes),
            patch.object(limits, "RAFT_IN_FLIGHT_ENTRIES_MAX", sizes.in_flight_entries),
            patch.object(limits, "RAFT_BATCH_ENTRIES_MAX", max(1, sizes.in_flight_entries // 4)),
            patch.object(limits, "RAFT_SNAPSHOT_IDLE_S", 1.0),
        ):
            yield

    def over_the_wire(self, message: Message) -> Message:
        return codec.decode_message(codec.encode_message(message))

    def boot(self, place: Place) -> SyncObj:
        return HardenedSyncObj(
            place.self_id,
            place.other_ids,
            place.sizes.conf(),
            disk=place.disk,
            folder=FOLDER,
            machine=StateOnDisk(place.machine, place.disk),
            transport_class=place.transport_class,
            request_ids=place.random,
        )

    def propose(self, node: SyncObj, command: str, callback: Callback) -> None:
        node.apply(command, callback)

    def add_member(self, node: SyncObj, node_id: str, callback: Callback) -> None:
        node.add_member(node_id, callback)

    def remove_member(self, node: SyncObj, node_id: str, callback: Callback) -> None:
        node.remove_member(node_id, callback)


class StateOnDisk:
    """A machine as the node takes it."""

    def __init__(self, machine: Machine, disk: SimulatedDisk) -> None:
        self._machine = machine
        self._disk = disk

    @property
    def applied_index(self) -> int:
        return self._machine.index

    def apply(self, request: Proposal, index: int) -> str:
        if (error := self._disk.fault("apply", FOLDER)) is not None:
            raise StateMachineFailed(os.strerror(error))
        return self._machine.apply(request.command, index)

    def flush(self, index: int) -> None:
        self._machine.flush(index)

    def snapshot(self, path: Path) -> None:
        file = self._disk.open(path)
        file.append([self._machine.snapshot()])
        file.close()

    feature_level = 1

    @property
    def digest(self) -> bytes:
        return self._machine.digest

    def restore(self, path: Path, *, is_diverged: bool = False) -> None:
        assert not is_diverged, "a member thinks that it has diverged"
        self._machine.restore(bytes(self._disk.read(path, 0, self._disk.size(path))))
