"""The library as it is sold, its files on a simulated disk.

It is treated kindly: what it renames into place is durable, although it syncs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import pysyncobj.journal
import pysyncobj.syncobj
from pysyncobj import SyncObj, SyncObjConsumer, replicated
from pysyncobj.node import Node
from pysyncobj.serializer import Serializer

from tests.cluster.raft.fuzz.libraries.library import Callback, Message, Place, Sizes, inside
from tests.cluster.raft.fuzz.machine import Machine
from tests.support.storage.disk import SimulatedDisk

DIRECTORY = Path("/raft")
JOURNAL = DIRECTORY / "journal"
META = DIRECTORY / "meta"
DUMP = DIRECTORY / "dump"


class Stock:
    """Starts nodes of the library's own class."""

    keeps_machine = False
    keeps_members = False
    stops = (OSError,)
    bears = (Exception,)

    def sized(self, _sizes: Sizes) -> AbstractContextManager[None]:
        return nullcontext()

    def over_the_wire(self, message: Message) -> Message:
        return dict(message)

    def boot(self, place: Place) -> SyncObj:
        disk, consumer = place.disk, MachineConsumer(place.machine)
        disk.make_dir(DIRECTORY)
        conf = place.sizes.conf()
        conf.journalFile = str(JOURNAL)
        with _files_on(disk):
            node = SyncObj(
                Node(place.self_id),
                [Node(other) for other in place.other_ids],
                conf=conf,
                consumers=[consumer],
                nodeClass=Node,
                transportClass=place.transport_class,
            )
        if DUMP in disk.paths():
            inside(node, "loadDumpFile")(clearJournal=False)
        return node

    def propose(self, node: SyncObj, command: str, callback: Callback) -> None:
        inside(node, "consumers")[0].apply(command, callback=callback)

    def add_member(self, node: SyncObj, node_id: str, callback: Callback) -> None:
        node.addNodeToCluster(Node(node_id), callback)

    def remove_member(self, node: SyncObj, node_id: str, callback: Callback) -> None:
        node.removeNodeFromCluster(Node(node_id), callback)


@contextmanager
def _files_on(disk: SimulatedDisk) -> Iterator[None]:
    journal, syncobj = pysyncobj.journal, pysyncobj.syncobj
    with (
        patch.object(journal, "ResizableFile", lambda _path, **new: Mapped(disk, **new)),
        patch.object(journal, "MetaStorer", lambda _path: Meta(disk)),
        patch.object(syncobj, "Serializer", lambda _path, batch_bytes, *_: Dump(disk, batch_bytes)),
    ):
        yield


class MachineConsumer(SyncObjConsumer):
    """A machine as the library takes it."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    @replicated
    def apply(self, command: str) -> str:
        return self._machine.apply(command, 0)

    def _serialize(self) -> bytes:
        return self._machine.snapshot()

    def _deserialize(self, data: bytes) -> None:
        self._machine.restore(data)


class Mapped:
    """The library's memory-mapped file."""

    def __init__(self, disk: SimulatedDisk, defaultContent: bytes) -> None:
        self._disk = disk
        new = JOURNAL not in disk.paths()
        self._file = disk.open(JOURNAL)
        if new:
            self._file.write_at(defaultContent, 0)

    def write(self, offset: int, values: bytes) -> None:
        self._file.write_at(values, offset)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._disk.read(JOURNAL, offset, size))


class Meta:
    """The library's file of term and vote."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def getMeta(self) -> dict[str, object]:
        if META not in self._disk.paths():
            return {}
        return pysyncobj.journal.loads(self._disk.read_all(META))

    def storeMeta(self, meta: dict[str, object]) -> None:
        self._disk.replace(META, pysyncobj.journal.dumps(meta))


class Dump(Serializer):
    """The library's snapshots, which it keeps in memory for want of a file name."""

    def __init__(self, disk: SimulatedDisk, batch_bytes: int) -> None:
        super().__init__(None, batch_bytes, False, None, None, None)
        self._disk = disk
        if DUMP in disk.paths():
            self._Serializer__inMemorySerializedData = disk.read_all(DUMP)

    def serialize(self, data: object, id: int) -> None:
        super().serialize(data, id)
        self._store()

    def setTransmissionData(self, data: object) -> bool:
        whole = super().setTransmissionData(data)
        if whole:
            self._store()
        return bool(whole)

    def _store(self) -> None:
        self._disk.replace(DUMP, self._Serializer__inMemorySerializedData)
