"""Opening a partition: its two logs after recovery, and the state that they lead to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from goq import limits
from goq.broker.events.replay import rebuild
from goq.broker.log.frame_cache import FrameCache
from goq.broker.log.quorum import Quorum
from goq.broker.partition.loader import restore_dedup
from goq.broker.partition.outstanding import learn_outstanding
from goq.broker.partition.ready_state import Dispatch, first_needed
from goq.broker.runtime.metrics import Histogram
from goq.broker.runtime.tasks import Tasks
from goq.clock import Clock
from goq.config.topic import TopicSettings
from goq.delivery.dedup.dedup_window import DedupWindow
from goq.delivery.events.frame_codec import encode_event_frame
from goq.delivery.partition_state import PartitionState
from goq.errors import GoqError
from goq.storage.disk import Disk
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.segment import Segment


class PartitionId(NamedTuple):
    """Which partition of which topic."""

    topic: str
    number: int


class Quorums(NamedTuple):
    """What the writers of a partition's two logs wait for besides their own disk."""

    messages: Quorum
    events: Quorum


@dataclass(frozen=True, slots=True)
class Machinery:
    """What every partition of a node shares, but for ``epoch`` where others have replicas of it:
    then each has one of its own, the leader epoch."""

    disk: Disk
    executor: Executor
    clock: Clock
    epoch: int
    on_seal: Callable[[PartitionId, str, Segment], None]
    write_seconds: Histogram
    frames: FrameCache
    tasks: Tasks
    luck: Callable[[], float]
    """Draws a number from 0 to below 1."""
    new_id: Callable[[], int]
    """Draws a producer id that nobody else has."""


class Opened(NamedTuple):
    """A partition's logs and state as recovery left them.

    ``snapshot_sequence`` is where the events begin that the state is rebuilt from.
    """

    messages: Log
    events: Log
    state: PartitionState
    dispatch: Dispatch
    snapshot_sequence: int
    dedup: DedupWindow


class Logs(NamedTuple):
    """The two logs of a partition."""

    messages: Log
    events: Log


def open_logs(directory: Path, disk: Disk, settings: TopicSettings) -> Logs:
    """Recover both logs; blocks on the disk, so run it in a thread."""
    with contextlib.ExitStack() as on_error:
        messages = Log.open(directory / "messages", disk, messages_config(settings))
        on_error.callback(_release, messages)
        events = Log.open(directory / "events", disk, events_config(settings))
        on_error.pop_all()
    return Logs(messages, events)


def open_partition(directory: Path, machinery: Machinery, settings: TopicSettings) -> Opened:
    """Recover both logs and the state; blocks on the disk, so run it in a thread."""
    return restore(open_logs(directory, machinery.disk, settings), machinery, settings)


def restore(logs: Logs, machinery: Machinery, settings: TopicSettings) -> Opened:
    """Return the state that logs lead to; blocks on the disk. Failing, it closes them."""
    with contextlib.ExitStack() as on_error:
        for log in logs:
            on_error.callback(_release, log)
        dedup = restore_dedup(logs.messages, settings, machinery.clock.wall_us())
        opened = _rebuild(*logs, machinery, settings, dedup)
        on_error.pop_all()
    return opened


def _rebuild(
    messages: Log,
    events: Log,
    machinery: Machinery,
    settings: TopicSettings,
    dedup: DedupWindow,
) -> Opened:
    rebuilt = rebuild(
        events,
        start_offset=messages.start_offset,
        end_offset=messages.end_offset,
        is_sound=messages.reader.is_sound,
    )
    if rebuilt.repairs:  # durable before an offset that was lost is given to another message
        view = encode_event_frame(rebuilt.repairs)
        now_us = machinery.clock.wall_us()
        batch = events.begin(now_us)
        batch.add(view.header, view.body, append_time_us=now_us, leader_epoch=machinery.epoch)
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
    dispatch = Dispatch.build(
        messages,
        state,
        settings,
        machinery.clock.wall_ms(),
        start=first_needed(messages, state),
        end=messages.end_offset,
    )
    learn_outstanding(messages, state, dispatch)
    return Opened(messages, events, state, dispatch, rebuilt.sequence, dedup)


def _release(log: Log) -> None:
    with contextlib.suppress(GoqError, OSError):
        log.close()


def messages_config(settings: TopicSettings) -> LogConfig:
    """Return how a topic's settings want its messages kept."""
    return LogConfig(settings.segment_bytes, settings.segment_age_ms, settings.fsync, columns=True)


def events_config(settings: TopicSettings) -> LogConfig:
    """Return how a topic's settings want its events kept."""
    never_by_itself = 2**62  # a segment of events begins with a snapshot, so only one begins it
    return LogConfig(never_by_itself, never_by_itself, settings.fsync)
