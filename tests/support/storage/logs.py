"""Filling a log with frames, and reading all of it back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from goq.frame.encoder import Columns, encode_frame
from goq.frame.header import HEADER_BYTES, parse_header
from goq.frame.view import FrameView
from goq.model import Message
from goq.storage.log.log import Log
from goq.storage.scanner import Damage

DIRECTORY = Path("/data/messages")
START_US = 1_700_000_000_000_000


class Held(NamedTuple):
    """What a log serves: frames by their first offset, and the offsets that it says are bad."""

    frames: dict[int, bytes]
    damage: list[Damage]

    @property
    def damaged_offsets(self) -> set[int]:
        return {o for d in self.damage for o in range(d.start_offset, d.end_offset)}


def frame_of(values: Sequence[bytes | None], *, compress: bool = False) -> bytes:
    return encode_frame(Columns(values), compress=compress)


def append(log: Log, frames: Iterable[bytes], *, time_us: int = START_US, epoch: int = 1) -> int:
    """Append frames in one batch, durably; return the offset of the first."""
    batch = log.begin(time_us)
    first = batch.end_offset
    for frame in frames:
        batch.add(
            parse_header(frame),
            memoryview(frame)[HEADER_BYTES:],
            append_time_us=time_us,
            leader_epoch=epoch,
        )
    log.write(batch)
    log.commit(batch)
    return first


def read_all(log: Log, *, bytes_max: int = 1 << 20) -> Held:
    """Read from the first offset to the last, by as many readings as it takes."""
    held = Held({}, [])
    offset = log.start_offset
    while offset < log.end_offset:
        reading = log.reader.read(offset, log.end_offset, bytes_max=bytes_max)
        assert reading.next_offset > offset, "reading must get on"
        held.frames.update((v.header.base_offset, bytes(v.buffer)) for v in reading.frames)
        held.damage.extend(reading.damage)
        offset = reading.next_offset
    return held


def messages_of(frame: bytes) -> list[Message]:
    view = FrameView.parse(frame)
    return list(view.messages(0, view.header.message_count))
