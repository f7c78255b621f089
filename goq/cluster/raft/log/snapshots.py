"""Snapshots in transfer: one outgoing, to followers that lag too far; one incoming.

snapshot.out                 the outgoing snapshot; useless after a restart
snapshot.in                  the received part of an incoming one; useless after a restart
snapshot-<index>-<term>.in   a complete incoming one, until the state machine has restored it
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from goq import limits
from goq.cluster.raft.state_machine.state_machine import StateMachine, StateMachineFailed
from goq.errors import CorruptData, StorageFull
from goq.frame.checksum import crc32c
from goq.storage.disk import Disk, File, is_temporary

OUT_NAME = "snapshot.out"
IN_NAME = "snapshot.in"
_JOURNAL_SUFFIX = "-journal"  # of SQLite, beside a database that it could not finish
_RECEIVED = re.compile(r"snapshot-\d+-\d+\.in")
_READ_BYTES = 1024 * 1024
_log = logging.getLogger(__name__)


class SnapshotMetadata(msgspec.Struct, frozen=True):
    """Describes a snapshot: the state after entry ``index`` of ``term``, and the members then."""

    index: int
    term: int
    members: list[str]
    size_bytes: int
    crc32c: int


class _Follower(msgspec.Struct):
    offset: int = 0
    sent_at_s: float | None = None


class _Outgoing(msgspec.Struct):
    metadata: SnapshotMetadata
    used_s: float
    followers: dict[str, _Follower] = msgspec.field(default_factory=dict)


class _Incoming(msgspec.Struct):
    metadata: SnapshotMetadata
    file: File
    crc32c: int = 0


class Snapshots:
    """The outgoing and the incoming snapshot; ``chunk_bytes`` is the size of a message's data."""

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
        self._retry_s = -math.inf
        """When a snapshot may be created again: each heartbeat asks for it, and it takes long."""

    def recover(self, first_index: int, first_term: int) -> None:
        """Finish an installation that a crash interrupted, and remove all other snapshot files.

        Raises ``CorruptData`` when the log starts after the applied state, and no snapshot closes
        the gap.
        """
        received = self._received_name(first_index, first_term)
        names = self._disk.names(self._folder)
        if self._machine.applied_index < first_index and first_index > 1:
            if received not in names:
                raise CorruptData(
                    f"the state of this node ends at {self._machine.applied_index}, the log in"
                    f" {self._folder} starts at {first_index}; remove this node from the cluster,"
                    " and join it again with an empty folder"
                )
            self._machine.restore(self._folder / received)
            self._machine.flush(first_index)
        for name in names:
            if name in (OUT_NAME, IN_NAME) or _RECEIVED.fullmatch(name):
                self._disk.remove(self._folder / name)

    # Outgoing

    def retained_index(self) -> int | None:
        """Return the index that the log must keep for the outgoing snapshot, or None."""
        outgoing = self._outgoing
        if outgoing is not None and self._clock() - outgoing.used_s > limits.RAFT_SNAPSHOT_IDLE_S:
            self.discard_outgoing()
        return None if self._outgoing is None else self._outgoing.metadata.index

    def discard_outgoing(self) -> None:
        """Delete the outgoing snapshot."""
        if self._outgoing is not None:
            self._outgoing = None
            self._disk.remove(self._folder / OUT_NAME)

    def create(self, index: int, term: int, members: list[str]) -> bool:
        """Snapshot the state machine, which is at ``index``, for sending; False on failure."""
        path = self._folder / OUT_NAME
        if self._clock() < self._retry_s:
            return False
        try:
            self.discard_outgoing()
            self._disk.remove(path)
            self._machine.snapshot(path)
            size_bytes, check = self._disk.size(path), 0
            for position in range(0, size_bytes, _READ_BYTES):
                check = crc32c(self._disk.read(path, position, _READ_BYTES), check)
        except (OSError, StateMachineFailed, StorageFull) as error:
            _log.error("cannot create a snapshot for the followers that need one: %s", error)
            for name in (OUT_NAME, OUT_NAME + _JOURNAL_SUFFIX):  # they would hold the last room
                with suppress(OSError):
                    self._disk.remove(self._folder / name)
            self._retry_s = self._clock() + limits.RAFT_SNAPSHOT_RETRY_S
            return False
        metadata = SnapshotMetadata(index, term, members, size_bytes, check)
        self._outgoing = _Outgoing(metadata, self._clock())
        return True

    def next_chunk(self, node: str, retry_s: float) -> dict[str, Any]:
        """Return the next message to a follower.

        Its data is empty while the last chunk may still be in transit, for at most ``retry_s``.
        """
        outgoing = self._outgoing
        assert outgoing is not None
        metadata, now_s = outgoing.metadata, self._clock()
        follower = outgoing.followers.setdefault(node, _Follower())
        sent_at_s = follower.sent_at_s
        data = b""
        if sent_at_s is None or now_s - sent_at_s > retry_s:
            follower.sent_at_s = now_s
            path = self._folder / OUT_NAME
            data = bytes(self._disk.read(path, follower.offset, self._chunk_bytes))
        return {
            "type": "snapshot",
            "index": metadata.index,
            "index_term": metadata.term,
            "members": metadata.members,
            "size_bytes": metadata.size_bytes,
            "crc32c": metadata.crc32c,
            "offset": follower.offset,
            "data": data,
        }

    def on_reply(self, node: str, index: int, offset: int) -> bool:
        """Note how much a follower has; return whether the next chunk may be sent."""
        outgoing = self._outgoing
        if (
            outgoing is None
            or outgoing.metadata.index != index
            or offset > outgoing.metadata.size_bytes
        ):
            return False
        follower = outgoing.followers.setdefault(node, _Follower())
        outgoing.used_s = self._clock()
        if offset == follower.offset:
            return False
        follower.offset, follower.sent_at_s = offset, None
        return True

    # Incoming

    def receive_chunk(self, metadata: SnapshotMetadata, offset: int, data: bytes) -> int | None:
        """Store a chunk; return the received size, or None once all is valid and synced.

        Raises ``StorageFull``.
        """
        incoming = self._incoming
        if incoming is None or incoming.metadata != metadata:
            incoming = self._start_receiving(metadata)
        if data and offset == incoming.file.size_bytes:
            _append(incoming.file, data)
            incoming.crc32c = crc32c(data, incoming.crc32c)
        if incoming.file.size_bytes < metadata.size_bytes:
            return incoming.file.size_bytes
        is_intact = (incoming.file.size_bytes, incoming.crc32c) == (
            metadata.size_bytes,
            metadata.crc32c,
        )
        if not is_intact:
            _log.error(
                "the received snapshot of index %d is corrupt; requesting it again", metadata.index
            )
            self._start_receiving(metadata)
            return 0
        incoming.file.sync()
        incoming.file.close()
        self._incoming = None
        received = self._received_name(metadata.index, metadata.term)
        self._disk.rename(self._folder / IN_NAME, self._folder / received)
        return None

    def install(self, metadata: SnapshotMetadata, *, is_diverged: bool = False) -> None:
        """Restore the state machine from a complete snapshot, whose entry the log has.

        An outgoing snapshot is dropped, since it may be of a state that has diverged. The log may
        begin after the former state already. So a state machine without room fails for good: only
        the next start takes this up again.
        """
        self.discard_outgoing()
        path = self._folder / self._received_name(metadata.index, metadata.term)
        try:
            self._machine.restore(path, is_diverged=is_diverged)
            self._machine.flush(metadata.index)
        except StorageFull as error:
            raise StateMachineFailed(error.detail) from error
        self._disk.remove(path)

    def close(self) -> None:
        """Close the file of the incoming snapshot."""
        if self._incoming is not None:
            self._incoming.file.close()
            self._incoming = None

    def _start_receiving(self, metadata: SnapshotMetadata) -> _Incoming:
        self.close()
        path = self._folder / IN_NAME
        self._disk.remove(path)
        self._incoming = _Incoming(metadata, self._disk.open(path))
        return self._incoming

    def _received_name(self, index: int, term: int) -> str:
        return f"snapshot-{index}-{term}.in"


def _append(file: File, data: bytes) -> None:
    try:
        file.append([data])
    except OSError as error:
        if is_temporary(error):
            raise StorageFull(f"no room for the incoming snapshot: {error.strerror}") from None
        raise
