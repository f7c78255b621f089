"""A topic in memory, as the export sees one: frames that were stamped with offsets and times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from goq.frame.encoder import columns_from_messages, encode_frame
from goq.frame.header import HEADER_BYTES, parse_header, stamp
from goq.frame.slice import slice_frame
from goq.frame.view import FrameView
from goq.model import Message
from goq.pipeline.arrow.node_source import FrameBatch, LogBounds


class LoggedFrames:
    """Partitions of frames; ``starts`` is where retention has come to, ``id`` that of the topic."""

    def __init__(self, partitions: int) -> None:
        self.frames: list[list[FrameView]] = [[] for _ in range(partitions)]
        self.starts = [0] * partitions
        self.id = ""

    def publish(self, partition: int, messages: Sequence[Message], time_us: int) -> None:
        frames = self.frames[partition]
        offset = frames[-1].header.end_offset if frames else 0
        data = encode_frame(columns_from_messages(messages, default_lane=1))
        header = stamp(
            parse_header(data), base_offset=offset, append_time_us=time_us, leader_epoch=1
        )
        frames.append(FrameView.parse(header.pack() + data[HEADER_BYTES:]))

    def bounds(self, topic: str) -> Mapping[int, LogBounds]:
        return {
            number: LogBounds(start, frames[-1].header.end_offset if frames else 0)
            for number, (start, frames) in enumerate(zip(self.starts, self.frames, strict=True))
        }

    def default_lane(self, topic: str) -> int:
        return 1

    def lane_names(self, topic: str) -> Sequence[str]:
        return ["high", "normal", "low"]

    def read_messages(
        self, topic: str, partition: int, start: int, end: int
    ) -> Iterator[FrameBatch]:
        if start < self.starts[partition]:
            yield FrameBatch(
                [], min(end, self.starts[partition]), [(start, self.starts[partition])]
            )
            start = self.starts[partition]
        for view in self.frames[partition]:
            header = view.header
            if header.base_offset < end and header.end_offset > start:
                part = FrameView.parse(slice_frame(view, start, header.end_offset))
                yield FrameBatch([part], min(header.end_offset, end), [])

    def topic_id(self, topic: str) -> str:
        return self.id

    def event_bounds(self, topic: str) -> Mapping[int, LogBounds]:
        return {}

    def read_events(self, topic: str, partition: int, start: int, end: int) -> Iterator[FrameBatch]:
        return iter(())
