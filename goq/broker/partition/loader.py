"""Partition loader: recovers the two logs and rebuilds the state from them.

All functions block on the disk and run in a thread. The delivery state comes from the event log,
from its last complete snapshot on. The dedup window and the attributes of outstanding messages
(keys, lanes, tenants) come from the message log. The ready state follows from both.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from goq import limits
from goq.broker.events.replay import rebuild
from goq.broker.log.admission import dedup_window_us
from goq.broker.partition.ready_state.ready_state import ReadyState, first_unfinished
from goq.broker.partition_context import PartitionContext
from goq.config.topic import TopicSettings
from goq.delivery.dedup.dedup_window import DedupWindow, StoredDedupIds
from goq.delivery.events.frame_codec import encode_event_frame
from goq.delivery.group.key_locks import MessageAttributes
from goq.delivery.partition_state import PartitionState
from goq.errors import CorruptData, GoqError, StorageFailed
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.storage.catalog.rows import LOG_NAMES, PartitionManifest
from goq.storage.column_index.rows import rows_of
from goq.storage.disk import Disk
from goq.storage.journal.journal import NodeJournal
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.segment_files import is_listed

NOTHING_KNOWN = PartitionManifest()
_ATTRIBUTE_COLUMNS = Attribute.KEYS | Attribute.LANE | Attribute.TENANT


def learn_outstanding(messages: Log, state: PartitionState, ready: ReadyState) -> None:
    """Read the attributes of the outstanding messages of all groups; blocks on the disk."""
    outstanding = {
        name: sorted((part.start, part.end) for part in group.outstanding())
        for name, group in state.groups.items()
    }
    facts: dict[int, MessageAttributes] = {}
    for start, end in _joined(run for runs in outstanding.values() for run in runs):
        for view in _frames_between(messages, start, min(end, messages.end_offset)):
            if view.header.attributes & _ATTRIBUTE_COLUMNS or state.moved:
                facts.update(_facts(view, start, end, state, ready))
    for name, runs in outstanding.items():
        offsets = (offset for run in runs for offset in range(*run)) if facts else ()
        state.groups[name].restore_attributes({o: facts[o] for o in offsets if o in facts})


def _frames_between(messages: Log, start: int, end: int) -> Iterator[FrameView]:
    while start < end:
        reading = messages.reader.read(
            start, end, messages_max=end - start, bytes_max=limits.READ_BYTES_MAX
        )
        yield from reading.frames
        if reading.next_offset <= start:
            return
        start = reading.next_offset


def _facts(
    view: FrameView, start: int, end: int, state: PartitionState, ready: ReadyState
) -> Iterator[tuple[int, MessageAttributes]]:
    header = view.header
    first, last = max(start, header.base_offset), min(end, header.end_offset)
    keys = view.column(Attribute.KEY_HASH)
    hashes = keys.cast("Q").tolist() if keys is not None else [0] * header.message_count
    places: dict[int, tuple[int, int]] = {}
    rows = rows_of(view)
    if rows is not None:
        lanes, tenants = (column.tolist() for column in ready.places(rows))
        places = dict(zip(rows.offsets.tolist(), zip(lanes, tenants, strict=True), strict=True))
    for offset in range(first, last):
        lane, tenant = places.get(offset, (ready.default_lane, 0))
        key = hashes[offset - header.base_offset]
        fact = MessageAttributes(key, state.moved.get(offset, lane), tenant)
        if fact != (0, ready.default_lane, 0):
            yield offset, fact


def _joined(runs: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield runs in order; merge those that touch or overlap."""
    at: tuple[int, int] | None = None
    for start, end in sorted(runs):
        if at is None or start > at[1]:
            if at is not None:
                yield at
            at = (start, end)
        else:
            at = (at[0], max(at[1], end))
    if at is not None:
        yield at


def restore_dedup(messages: Log, settings: TopicSettings, now_us: int) -> DedupWindow:
    """Return the dedup window of a log; blocks on the disk."""
    window = DedupWindow(
        dedup_window_us(settings),
        time_of=lambda offset: _time_of(messages, offset),
        factors=(random.getrandbits(64), random.getrandbits(64)),
    )
    if window.window_us is not None:
        end = messages.end_offset
        start = messages.reader.offset_for_time(now_us - window.window_us + 1, end)
        rows = (StoredDedupIds(*rows) for rows in messages.reader.dedup_rows(start, end))
        window.restore(rows, max(now_us, messages.active.time_us))
    return window


def _time_of(messages: Log, offset: int) -> int | None:
    if offset < messages.start_offset:
        return None
    try:
        return messages.reader.append_time_us(offset)
    except (CorruptData, OSError):
        return None


class LoadedPartition(NamedTuple):
    """A partition's logs and state after recovery.

    ``snapshot_sequence`` is the sequence of the first event that the rebuild used.
    ``last_event_us`` is the time of the last event, None without any.
    """

    messages: Log
    events: Log
    state: PartitionState
    ready: ReadyState
    snapshot_sequence: int
    dedup: DedupWindow
    last_event_us: int | None


class PartitionLogs(NamedTuple):
    """The two logs of a partition."""

    messages: Log
    events: Log


def open_logs(
    directory: Path,
    disk: Disk,
    settings: TopicSettings,
    manifest: PartitionManifest = NOTHING_KNOWN,
    journal: NodeJournal | None = None,
) -> PartitionLogs:
    """Recover both logs; blocks on the disk, so run it in a thread.

    Sealed segments of the ``manifest`` that are missing are damage. Raises ``StorageFailed`` if the
    manifest says that the logs have existed, and one of them is gone: it would begin anew and
    assign offset 0 again, or forget what is done.
    """
    if manifest.has_existed:
        for name in LOG_NAMES:
            _check_present(disk, directory / name)
    with contextlib.ExitStack() as on_error:
        messages = Log.open(
            directory / "messages", disk, messages_config(settings), journal=journal
        )
        on_error.callback(_release, messages)
        events = Log.open(directory / "events", disk, events_config(settings), journal=journal)
        on_error.pop_all()
    for name, log in zip(LOG_NAMES, (messages, events), strict=True):
        for row in manifest.sealed:
            offsets = row.base_offset, row.end_offset
            if row.log == name and not is_listed(disk, log.segments, *offsets):
                log.reader.note_missing(*offsets)
    return PartitionLogs(messages, events)


def _check_present(disk: Disk, directory: Path) -> None:
    try:
        is_present = bool(disk.names(directory))
    except FileNotFoundError:
        is_present = False
    if not is_present:
        raise StorageFailed(
            f"{directory} is gone; restore it from a backup, or delete the topic and create it anew"
        )


def configure_logs(logs: PartitionLogs, settings: TopicSettings) -> None:
    """Apply a topic's settings to its open logs."""
    logs.messages.config = messages_config(settings)
    logs.events.config = events_config(settings)


def open_partition(
    directory: Path,
    context: PartitionContext,
    settings: TopicSettings,
    manifest: PartitionManifest = NOTHING_KNOWN,
) -> LoadedPartition:
    """Recover both logs and the state; blocks on the disk, so run it in a thread."""
    logs = open_logs(directory, context.disk, settings, manifest, context.journal)
    return load_partition(logs, context, settings)


def load_partition(
    logs: PartitionLogs, context: PartitionContext, settings: TopicSettings
) -> LoadedPartition:
    """Return the logs with their state; blocks on the disk. Closes the logs on failure."""
    with contextlib.ExitStack() as on_error:
        for log in logs:
            on_error.callback(_release, log)
        dedup = restore_dedup(logs.messages, settings, context.clock.wall_us())
        opened = _rebuild(*logs, context, settings, dedup)
        on_error.pop_all()
    return opened


def _rebuild(
    messages: Log,
    events: Log,
    context: PartitionContext,
    settings: TopicSettings,
    dedup: DedupWindow,
) -> LoadedPartition:
    rebuilt = rebuild(
        events,
        start_offset=messages.start_offset,
        end_offset=messages.end_offset,
        is_sound=messages.reader.is_sound,
    )
    if rebuilt.repairs:  # durable before a lost offset is assigned again
        view = encode_event_frame(rebuilt.repairs, messages.end_offset)
        now_us = context.clock.wall_us()
        batch = events.begin(now_us)
        batch.add(view.header, view.body, append_time_us=now_us, leader_epoch=context.epoch)
        events.write(batch)
        events.commit(batch)
        events.sync()
    state, offset = rebuilt.state, rebuilt.messages_offset
    while offset < messages.end_offset:
        reading = messages.reader.read(
            offset, messages.end_offset, messages_max=2**62, bytes_max=8 * limits.MIB
        )
        for view in reading.frames:
            header = view.header
            state.producers.add(header, header.base_offset, header.append_time_us)
        offset = reading.next_offset
    ready = ReadyState.build(
        messages,
        state,
        settings,
        context.clock.wall_ms(),
        start=first_unfinished(messages, state),
        end=messages.end_offset,
    )
    learn_outstanding(messages, state, ready)
    return LoadedPartition(
        messages, events, state, ready, rebuilt.sequence, dedup, rebuilt.last_event_us
    )


def release_logs(loaded: LoadedPartition) -> None:
    """Close the logs of a partition that is not used; nothing was written to them."""
    _release(loaded.messages)
    _release(loaded.events)


def _release(log: Log) -> None:
    with contextlib.suppress(GoqError, OSError):
        log.close()


def messages_config(settings: TopicSettings) -> LogConfig:
    """Return the configuration of a topic's message logs."""
    return LogConfig(settings.segment_bytes, settings.segment_age_ms, settings.fsync, columns=True)


def events_config(settings: TopicSettings) -> LogConfig:
    """Return the configuration of a topic's event logs."""
    no_roll = 2**62  # the event writer rolls, because each segment begins with a snapshot
    return LogConfig(no_roll, no_roll, settings.fsync)
