"""Snapshots under way: one going out to followers that are too far behind, one coming in.

snapshot.out                 the copy that is being sent; of no use after a restart
snapshot.in                  what has come of one so far; of no use after a restart
snapshot-<index>-<term>.in   one that came whole, until the machine has taken it
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crc32c import crc32c

from goq import limits
from goq.cluster.raft.state_machine.state_machine import StateMachine, StateMachineFailed
from goq.errors import CorruptData, StorageFull
from goq.storage.disk import Disk, File, is_full

OUT_NAME = "snapshot.out"
IN_NAME = "snapshot.in"
_WHOLE = re.compile(r"snapshot-\d+-\d+\.in")
_READ_BYTES = 1024 * 1024
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotMetadata:
    """A snapshot as a whole: the state after entry ``index`` of ``term``, and the members then."""

    index: int
    term: int
    members: list[str]
    size_bytes: int
    crc32c: int


@dataclass(slots=True)
class _Sending:
    offset: int = 0
    waiting_since_s: float | None = None


@dataclass(slots=True)
class _Outgoing:
    copy: SnapshotMetadata
    used_s: float
    to: dict[str, _Sending] = field(default_factory=dict)


@dataclass(slots=True)
class _Incoming:
    copy: SnapshotMetadata
    file: File
    crc32c: int = 0


class Snapshots:
    """The two, on one disk. ``chunk_bytes`` is what is sent at once."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        machine: StateMachine,
        clock: Callable[[], float],
        chunk_bytes: int,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._machine = machine
        self._clock = clock
        self._chunk_bytes = chunk_bytes
        self._outgoing: _Outgoing | None = None
        self._incoming: _Incoming | None = None

    def recover(self, first_index: int, first_term: int) -> None:
        """Finish an installation that a crash cut short, and clear away the rest.

        ``CorruptData`` when the log begins after what the machine has, and no snapshot is there.
        """
        whole = self._whole_name(first_index, first_term)
        names = self._disk.names(self._folder)
        if self._machine.applied_index < first_index and first_index > 1:
            if whole not in names:
                raise CorruptData(
                    f"the state of this node ends at {self._machine.applied_index}, the log in"
                    f" {self._folder} begins at {first_index}; remove this node from the cluster,"
                    " and let it join again with an empty folder"
                )
            self._machine.restore(self._folder / whole)
            self._machine.flush(first_index)
        for name in names:
            if name in (OUT_NAME, IN_NAME) or _WHOLE.fullmatch(name):
                self._disk.remove(self._folder / name)

    # Going out

    def retained_index(self) -> int | None:
        """Return the index that the log must not let go of yet, for those who get a snapshot."""
        outgoing = self._outgoing
        if outgoing is not None and self._clock() - outgoing.used_s > limits.RAFT_SNAPSHOT_IDLE_S:
            self.discard_outgoing()
        return None if self._outgoing is None else self._outgoing.copy.index

    def discard_outgoing(self) -> None:
        """Give up what is going out."""
        if self._outgoing is not None:
            self._outgoing = None
            self._disk.remove(self._folder / OUT_NAME)

    def create(self, index: int, term: int, members: list[str]) -> bool:
        """Copy the machine as it is now, after ``index``, for sending; False if that fails."""
        path = self._folder / OUT_NAME
        try:
            self._disk.remove(path)
            self._machine.snapshot(path)
            size_bytes, check = self._disk.size(path), 0
            for position in range(0, size_bytes, _READ_BYTES):
                check = crc32c(self._disk.read(path, position, _READ_BYTES), check)
        except (OSError, StateMachineFailed, StorageFull) as error:
            _log.error("no snapshot for the followers that need one: %s", error)
            return False
        copy = SnapshotMetadata(index, term, members, size_bytes, check)
        self._outgoing = _Outgoing(copy, self._clock())
        return True

    def next_chunk(self, node: str, retry_s: float) -> dict[str, Any]:
        """Return the next message to a node; an empty piece while the last may be under way."""
        outgoing = self._outgoing
        assert outgoing is not None
        copy, now_s = outgoing.copy, self._clock()
        sending = outgoing.to.setdefault(node, _Sending())
        under_way = sending.waiting_since_s
        data = b""
        if under_way is None or now_s - under_way > retry_s:
            sending.waiting_since_s = now_s
            path = self._folder / OUT_NAME
            data = bytes(self._disk.read(path, sending.offset, self._chunk_bytes))
        return {
            "type": "snapshot",
            "index": copy.index,
            "index_term": copy.term,
            "members": copy.members,
            "size_bytes": copy.size_bytes,
            "crc32c": copy.crc32c,
            "offset": sending.offset,
            "data": data,
        }

    def on_reply(self, node: str, index: int, offset: int) -> bool:
        """Take a follower's word on how much it has; whether the next piece may go."""
        outgoing = self._outgoing
        if outgoing is None or outgoing.copy.index != index or offset > outgoing.copy.size_bytes:
            return False
        sending = outgoing.to.setdefault(node, _Sending())
        outgoing.used_s = self._clock()
        if offset == sending.offset:
            return False
        sending.offset, sending.waiting_since_s = offset, None
        return True

    # Coming in

    def receive_chunk(self, copy: SnapshotMetadata, offset: int, data: bytes) -> int | None:
        """Take a piece; return how much is there, or None once all is there, sound and synced.

        Raises ``StorageFull`` when there is no room for it.
        """
        incoming = self._incoming
        if incoming is None or incoming.copy != copy:
            incoming = self._begin(copy)
        if data and offset == incoming.file.size_bytes:
            _append(incoming.file, data)
            incoming.crc32c = crc32c(data, incoming.crc32c)
        if incoming.file.size_bytes < copy.size_bytes:
            return incoming.file.size_bytes
        sound = (incoming.file.size_bytes, incoming.crc32c) == (copy.size_bytes, copy.crc32c)
        if not sound:
            _log.error("a snapshot of index %d came damaged; asking for it again", copy.index)
            self._begin(copy)
            return 0
        incoming.file.sync()
        incoming.file.close()
        self._incoming = None
        whole = self._whole_name(copy.index, copy.term)
        self._disk.rename(self._folder / IN_NAME, self._folder / whole)
        return None

    def install(self, copy: SnapshotMetadata) -> None:
        """Give the machine what came; the log begins there already."""
        path = self._folder / self._whole_name(copy.index, copy.term)
        self._machine.restore(path)
        self._machine.flush(copy.index)
        self._disk.remove(path)

    def close(self) -> None:
        """Release the file of what is coming in."""
        if self._incoming is not None:
            self._incoming.file.close()
            self._incoming = None

    def _begin(self, copy: SnapshotMetadata) -> _Incoming:
        self.close()
        path = self._folder / IN_NAME
        self._disk.remove(path)
        self._incoming = _Incoming(copy, self._disk.open(path))
        return self._incoming

    def _whole_name(self, index: int, term: int) -> str:
        return f"snapshot-{index}-{term}.in"


def _append(file: File, data: bytes) -> None:
    try:
        file.append([data])
    except OSError as error:
        if is_full(error):
            raise StorageFull("no room on the disk for the snapshot that comes") from None
        raise
