"""Frames with every mix of columns, and what a log says of them against plain lists."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from tests.support.storage.logs import START_US

START_MS = START_US // 1000
NO_ID = bytes(16)


class Row(NamedTuple):
    offset: int
    lane: int
    tenant: str | None
    deliver_at_ms: int


class Said(NamedTuple):
    """The rows and the dedup ids of some messages."""

    rows: list[Row]
    dedup: list[tuple[int, bytes]]


def random_frame(random: Random) -> bytes:
    """Return a frame: half of them plain, the others with any mix of columns."""
    count = random.choice([1, 1, 2, 5, 40])
    values = [random.randbytes(random.choice([0, 9, 60])) for _ in range(count)]
    if random.random() < 0.5:
        return encode_frame(Columns(values, keys=random.choice([None, values])))

    def column(choices: list[object]) -> list[object] | None:
        return random.choice([None, [random.choice(choices) for _ in range(count)]])

    times = [0, 1, START_MS, START_MS + 1, START_MS + 10**6, 2**63 - 1, -5]
    columns = Columns(
        values,
        deliver_at_ms=column(times),
        expires_at_ms=column([0, 5]),
        dedup_ids=column([NO_ID, b"a" * 16, b"\1" + bytes(15)]),
        tenants=column([None, "acme", "zoë", "", "x" * 30]),
        lanes=column([0, 1, 255]),
    )
    return encode_frame(columns, compress=random.random() < 0.3)


def expected(frames: Iterable[tuple[int, bytes, int]]) -> Said:
    """Say by hand what frames give, each with its offset and the time when it was appended."""
    said = Said([], [])
    for offset, frame, time_us in frames:
        view = FrameView.parse(frame)
        count = view.header.message_count
        columns = view.columns(0, count)
        attributed = (columns.deliver_at_ms, columns.tenants, columns.lanes)
        for i in range(count):
            if any(column is not None for column in attributed):
                due = columns.deliver_at_ms[i] if columns.deliver_at_ms is not None else 0
                said.rows.append(
                    Row(
                        offset + i,
                        columns.lanes[i] if columns.lanes is not None else -1,
                        columns.tenants[i] if columns.tenants is not None else None,
                        due if due * 1000 > time_us else 0,
                    )
                )
            if columns.dedup_ids is not None and columns.dedup_ids[i] != NO_ID:
                said.dedup.append((offset + i, columns.dedup_ids[i]))
    return said


def said_by(
    log: Log,
    start: int = 0,
    end: int = 2**62,
    due: tuple[int | None, int | None] = (None, None),
) -> Said:
    """Return everything that a log says, and check that it says it in order."""
    rows, dedup = [], []
    for some in log.reader.rows(start, end, *due):
        assert len(some.offsets) == len(some.lanes) == len(some.tenants) == len(some.deliver_at_ms)
        assert len(set(some.tenant_names)) == len(some.tenant_names)
        names = [*some.tenant_names, None]
        lists = (some.offsets.tolist(), some.lanes.tolist(), some.tenants.tolist())
        for offset, lane, tenant, due_ms in zip(*lists, some.deliver_at_ms.tolist(), strict=True):
            rows.append(Row(offset, lane, names[tenant], due_ms))
    for found in log.reader.dedup_rows(start, end):
        ids = [words.tobytes() for words in found.ids]
        dedup[:0] = zip(found.offsets.tolist(), ids, strict=True)
    assert [row.offset for row in rows] == sorted(row.offset for row in rows)
    assert dedup == sorted(dedup)
    return Said(rows, dedup)


def part_of(said: Said, start: int, end: int) -> Said:
    return Said(
        [row for row in said.rows if start <= row.offset < end],
        [pair for pair in said.dedup if start <= pair[0] < end],
    )
