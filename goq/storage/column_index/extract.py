"""Extraction of rows from the fixed columns of frames; a plain frame has none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from goq.errors import InvalidFrame
from goq.frame.encoder import NO_TENANT
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.storage.column_index.rows import (
    ColumnRows,
    ColumnsBuilder,
    DedupIdRows,
    FrameRows,
    Int64s,
    expand_runs,
)

ROW_ATTRIBUTES = Attribute.LANE | Attribute.TENANT | Attribute.DELIVER_AT
COLUMN_ATTRIBUTES = ROW_ATTRIBUTES | Attribute.DEDUP_ID


def rows_of(view: FrameView) -> ColumnRows | None:
    """Return the rows of a stamped frame, or None if it has none.

    Removed messages have no row. Raises ``InvalidFrame`` or ``ValueError`` for an unsound frame
    that was never validated.
    """
    return _rows([view]) if view.header.attributes & ROW_ATTRIBUTES else None


def dedup_rows_of(view: FrameView) -> DedupIdRows | None:
    """Return the dedup ids of a stamped frame, or None if it has none."""
    return _dedup_rows([view]) if view.header.attributes & Attribute.DEDUP_ID else None


def read_frames(views: Sequence[FrameView]) -> FrameRows:
    """Return the rows of frames with rising offsets, all at once.

    One array operation costs more than one message, so frames are read together. A frame that was
    never validated and is not sound has no rows.
    """
    try:
        with_rows = [v for v in views if v.header.attributes & ROW_ATTRIBUTES]
        with_ids = [v for v in views if v.header.attributes & Attribute.DEDUP_ID]
        return _rows(with_rows) if with_rows else None, _dedup_rows(with_ids) if with_ids else None
    except (InvalidFrame, ValueError, IndexError):
        if len(views) == 1:
            return None, None
    builder = ColumnsBuilder()
    for view in views:
        builder.add(*read_frames([view]))
    return builder.rows() if builder.count else None, (
        builder.dedup_rows() if builder.dedup_count else None
    )


def _rows(views: Sequence[FrameView]) -> ColumnRows | None:
    headers = [view.header for view in views]
    counts = np.array([header.message_count for header in headers])
    lanes = _column(views, Attribute.LANE, b"\0").astype(np.int16)
    has_lanes = [bool(header.attributes & Attribute.LANE) for header in headers]
    if not all(has_lanes):
        lanes[~np.repeat(has_lanes, counts)] = -1
    deliver_at_ms = _column(views, Attribute.DELIVER_AT, bytes(8)).view(np.int64)
    # not multiplied by 1000, which could overflow: the producer's times are not validated
    append_ms = [max(0, header.append_time_us // 1000) for header in headers]
    deliver_at_ms = np.where(deliver_at_ms > np.repeat(append_ms, counts), deliver_at_ms, 0)
    bases = np.array([header.base_offset for header in headers])
    tenants, names = _tenants(views, counts)
    rows = ColumnRows(expand_runs(bases, counts), lanes, tenants, deliver_at_ms, names)
    if not any(header.attributes & Attribute.REMOVED for header in headers):
        return rows
    masks = [
        np.ones(view.header.message_count, np.bool_) if removed is None else ~removed.mask
        for view, removed in ((view, view.removed_rows) for view in views)
    ]
    rows = rows.select(np.concatenate(masks))
    return rows if len(rows.offsets) else None


def _column(views: Sequence[FrameView], attribute: int, none: bytes) -> npt.NDArray[np.uint8]:
    """Return a column of frames end to end, with ``none`` per message of a frame without it."""
    parts = [
        none * view.header.message_count
        if not view.header.attributes & attribute
        else view.column(attribute) or b""
        for view in views
    ]
    return np.frombuffer(b"".join(parts), np.uint8)


def _tenants(views: Sequence[FrameView], counts: Int64s) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return the number of each message's tenant among the names in use, and these names."""
    dictionaries = [view.tenants for view in views]
    known = [0 if d is None else len(d.offsets) - 1 for d in dictionaries]
    if not any(known):
        return np.full(int(counts.sum()), -1, np.int32), []
    none = NO_TENANT.to_bytes(2, "little")
    numbers = _column(views, Attribute.TENANT, none).view(np.uint16).astype(np.int64)
    is_none = numbers == NO_TENANT
    if ((numbers >= np.repeat(known, counts)) & ~is_none).any():
        raise InvalidFrame("a tenant's number is not in the frame's dictionary")
    *firsts, total = 0, *accumulate(known)  # as if the dictionaries were one
    numbers += np.repeat(firsts, counts)
    numbers[is_none] = total
    is_used = np.zeros(total + 1, np.bool_)
    is_used[numbers] = True
    names = [name for view in views for name in view.tenant_names]
    place: dict[str, int] = {}
    places = [-1] * (total + 1)
    for number in np.flatnonzero(is_used[:total]).tolist():
        places[number] = place.setdefault(names[number], len(place))
    return np.array(places, np.int32)[numbers], list(place)


def _dedup_rows(views: Sequence[FrameView]) -> DedupIdRows | None:
    counts = np.array([view.header.message_count for view in views])
    bases = np.array([view.header.base_offset for view in views])
    ids = _column(views, Attribute.DEDUP_ID, b"").view(np.uint64).reshape(-1, 2)
    given = ids.any(axis=1)
    if not given.any():
        return None
    return DedupIdRows(expand_runs(bases, counts)[given], ids[given])
