"""The logs that are on a machine's disk, and what would be left of them after a power cut."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from goq.clock import ManualClock
from goq.errors import GoqError
from goq.frame.header import ALIGNMENT_BYTES, MAGIC, parse_header
from goq.frame.validation import check_body_crc
from goq.frame.view import FrameView
from goq.model import Message
from goq.storage.journal.journal import JOURNAL_DIR, NodeJournal
from goq.storage.log.log import Log
from tests.sim.cluster import TOPIC
from tests.sim.environment.machine import Machine
from tests.support.storage.disk import InlineExecutor, SimulatedDisk, _Inode

LOGS = ("messages", "events")

_RESTARTED: WeakKeyDictionary[SimulatedDisk, tuple[int, SimulatedDisk]] = WeakKeyDictionary()
"""By disk: the number of its operations, and what :func:`_restarted` returned then."""


class Frame(NamedTuple):
    """A frame in a log's files."""

    position: int
    size_bytes: int
    start: int
    end: int


def paths(machine: Machine, number: int, log: str) -> list[Path]:
    """Return the segments of a log, in order."""
    folder = re.compile(rf"{machine.folder}/topics/{TOPIC}(~\w+)?/{number}/{log}/[^/]+\.log")
    return [Path(path) for path in sorted(filter(folder.fullmatch, machine.disk._inodes))]


def bytes_of(machine: Machine, number: int, log: str) -> bytes:
    """Return the sound frames of a log."""
    found = (machine.disk.read_all(path) for path in paths(machine, number, log))
    return b"".join(map(_sound, found))


def _restarted(machine: Machine) -> SimulatedDisk:
    """Return the disk as it would be after a power cut that takes everything, and a start."""
    disk = machine.disk
    known = _RESTARTED.get(disk)
    if known is None or known[0] != disk.operations:
        topics, journal = machine.folder / "topics", machine.folder / JOURNAL_DIR
        copy = SimulatedDisk()
        copy._dirs = set(disk._dirs)
        kept = f"{topics}/", f"{journal}/"
        for path, inode in disk._inodes.items():
            if path.startswith(kept):
                copy._inodes[path] = _Inode(inode.stable)
        NodeJournal.open(copy, journal, topics, InlineExecutor(), ManualClock())
        known = _RESTARTED[disk] = disk.operations, copy
    return known[1]


def stable_files(machine: Machine) -> list[bytearray]:
    """Return what would be in the files of messages and of the journal after a power cut."""
    kept = f"{machine.folder}/topics/{TOPIC}", f"{machine.folder / JOURNAL_DIR}/"
    return [n.stable for path, n in machine.disk._inodes.items() if path.startswith(kept)]


def stable_bytes(machine: Machine, number: int, log: str) -> bytes:
    """Return the sound frames that would be there after a power cut and a start."""
    disk = _restarted(machine)
    found = (disk.read_all(path) for path in paths(machine, number, log))
    return b"".join(map(_sound, found))


@lru_cache(maxsize=512)  # most segments are as they were at the last look
def _sound(data: bytes) -> bytes:
    """Return the sound frames: a replica has a gap where another has damaged bytes."""
    pieces, position, begin = list[bytes](), 0, 0
    while position < len(data):
        size_bytes = _sound_bytes(data, position)
        if not size_bytes:
            pieces.append(data[begin:position])
            begin = position + ALIGNMENT_BYTES
        position += size_bytes or ALIGNMENT_BYTES
    return b"".join([*pieces, data[begin:]])


def _sound_bytes(data: bytes, position: int) -> int:
    """Return the size of the frame at a position, 0 if none is sound there."""
    if not data.startswith(MAGIC, position):
        return 0
    try:
        view = FrameView.parse(data, position)
        check_body_crc(view)
    except GoqError:
        return 0
    return view.header.frame_bytes


def frames_in(data: bytes) -> Iterator[Frame]:
    """Return the whole frames that bytes begin with; what was never synced may end them."""
    position = 0
    while True:
        try:
            header = parse_header(data, position)
        except GoqError:
            return
        end = position + header.frame_bytes
        if end > len(data):
            return
        yield Frame(position, header.frame_bytes, header.base_offset, header.end_offset)
        position = end


def from_same_start(one: bytes, other: bytes) -> tuple[bytes, bytes]:
    """Return both logs from the first offset that both have, if there is one."""
    starts = [next((frame.start for frame in frames_in(data)), 0) for data in (one, other)]
    first, second = (_from_offset(data, max(starts)) for data in (one, other))
    return first, second


def _from_offset(data: bytes, start: int) -> bytes:
    found = (frame.position for frame in frames_in(data) if frame.start >= start)
    return data[next(found, len(data)) :]


def messages_of(machine: Machine, number: int, topic: str = TOPIC) -> Iterator[Message]:
    """Yield the messages of a partition, none if it is not on this machine."""
    topics = machine.folder / "topics"
    names = [n for n in machine.disk.names(topics) if n.partition("~")[0] == topic]
    for folder in [topics / name / str(number) / "messages" for name in names]:
        log = Log.open(folder, machine.disk)
        reading = log.reader.read(0, log.end_offset, messages_max=2**40, bytes_max=2**40)
        assert not reading.damage
        for frame in reading.frames:
            yield from frame.messages(0, frame.header.message_count)
