"""A partition's messages in a list, read as the broker reads its log: by rows, and by facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from goq.delivery.selection.redelivery import AttributeColumns
from goq.storage.column_index.rows import ColumnRows
from tests.support.delivery.model import Message


class Frame(NamedTuple):
    start: int
    end: int
    is_plain: bool


class MessageLog:
    """The part of :class:`goq.storage.log.log.Log` that delivery asks."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.frames: list[Frame] = []
        self.start_offset = 0

    @property
    def reader(self) -> MessageLog:
        return self

    @property
    def end_offset(self) -> int:
        return len(self.messages)

    def truncate(self, end: int) -> None:
        cut = [frame._replace(end=min(frame.end, end)) for frame in self.frames]
        self.frames = [frame for frame in cut if frame.start < frame.end]

    def frame(self, offset: int) -> Frame:
        return next(frame for frame in self.frames if frame.start <= offset < frame.end)

    def rows_of(self, start: int, end: int) -> ColumnRows:
        messages = self.messages[start:end]
        names = sorted({m.tenant for m in messages if m.tenant is not None})
        return ColumnRows(
            np.arange(start, end, dtype=np.int64),
            np.array([m.lane for m in messages], np.int16),
            np.array(
                [-1 if m.tenant is None else names.index(m.tenant) for m in messages], np.int32
            ),
            np.array([m.due_ms for m in messages], np.int64),
            names,
        )

    def rows(
        self, start: int, end: int, *, due_from_ms: int | None = None, due_to_ms: int | None = None
    ) -> Iterator[ColumnRows]:
        for frame in self.frames:
            if frame.is_plain or frame.end <= start or end <= frame.start:
                continue
            rows = self.rows_of(frame.start, frame.end).within(start, end)
            if due_from_ms is not None or due_to_ms is not None:
                rows = rows.due_within(
                    due_from_ms or 1, 2**63 - 1 if due_to_ms is None else due_to_ms
                )
            if len(rows.offsets):
                yield rows

    def facts(self, start: int, end: int) -> AttributeColumns:
        end = min(end, self.frame(start).end)
        messages = self.messages[start:end]
        keys = [m.key for m in messages]
        expires_ms = [m.expires_ms for m in messages]
        groups = [m.only_group for m in messages]
        return AttributeColumns(
            end,
            True,
            keys if any(keys) else None,
            expires_ms if any(expires_ms) else None,
            groups if any(groups) else None,
        )
