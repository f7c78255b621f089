"""Appends published frames to a partition's message log.

The appender owns the group commit of the message log and the admission of frames. A frame enters
the state and the ready queues when it is committed: durable on this node and on the quorum. All
methods run on the event loop; only the writes run in threads.

Where consumers wait, and no other node has to have a frame, a small one enters just before the
event loop itself writes it: then the leases of its messages are written with it. This cannot be
observed, since nothing else runs in between. If the write fails, the partition is loaded again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from goq import limits
from goq.broker.events.writer import EventWriter
from goq.broker.log.admission import Admission
from goq.broker.log.frame_cache import CachedFrame, PartitionFrames
from goq.broker.log.group_commit import GroupCommit
from goq.broker.log.pending_appends import Appended, Waiter, WrittenFrame
from goq.broker.log.quorum import Quorum
from goq.broker.log.shared_frame import SharedBy, message_bytes
from goq.broker.partition.loader import LoadedPartition
from goq.broker.partition.ready_state.ready_state_manager import ReadyStateManager
from goq.broker.partition_context import Availability, PartitionCallbacks, PartitionContext
from goq.broker.runtime.callbacks import ignore
from goq.broker.runtime.metrics import TopicStats
from goq.delivery.dedup.producer_table import ProducerTable
from goq.delivery.events.event import Named, SnapshotProducers
from goq.errors import GoqError, StorageFull, TooManyRequests
from goq.frame.view import FrameView
from goq.model import Acks, Message
from goq.storage.column_index.rows import ROW_ATTRIBUTES, rows_of
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import WriteBatch


class Appender:
    """The producer side of one partition.

    ``on_delayed`` is called when a delayed message was committed, ``on_failure`` when the message
    log has failed for good.
    """

    def __init__(
        self,
        loaded: LoadedPartition,
        context: PartitionContext,
        callbacks: PartitionCallbacks,
        availability: Availability,
        ready_manager: ReadyStateManager,
        writer: EventWriter,
        stats: TopicStats,
        quorum: Quorum | None,
        frames: PartitionFrames,
        *,
        on_delayed: Callable[[], None],
        on_failure: Callable[[GoqError], None],
    ) -> None:
        self._log = loaded.messages
        self._state = loaded.state
        self._callbacks = callbacks
        self._availability = availability
        self._is_disk_full = context.is_disk_full
        self._ready_manager = ready_manager
        self._writer = writer
        self._stats = stats
        self._on_delayed = on_delayed
        self._on_failure = on_failure
        self._frames = frames
        self._is_staged = False  # what is being written has entered
        self._loop = asyncio.get_running_loop()
        self.admission = Admission(
            loaded.state.producers,
            loaded.dedup,
            partial(_read_frame, loaded.messages.reader),
            stats,
            context.clock,
            is_ahead=quorum is not None,
        )
        self.commit = GroupCommit(
            loaded.messages,
            context.executor,
            context.clock,
            context.epoch,
            on_commit=self._on_commit,
            on_seal=partial(context.on_seal, availability.identity, "messages"),
            on_failure=self._on_commit_failure,
            stager=self if quorum is None else None,
            admission=self.admission,
            quorum=quorum,
            write_seconds=context.write_seconds,
            turn=context.turn,
        )

    def holders(self, offset: int) -> Sequence[str]:
        """Return the nodes that have a message on disk; empty on a standalone node."""
        return self.commit.pending.holders(offset)

    def check_publish(self, frame_bytes: int) -> None:
        """Raise an error if a frame cannot be accepted now."""
        if self._availability.error is not None:
            raise self._availability.error
        if self._is_disk_full():
            raise StorageFull(
                "the disk is full; free some space, then send again", retry_after_ms=1000
            )
        if self._ready_manager.entering_bytes > limits.COMMIT_QUEUE_BYTES_MAX:
            raise TooManyRequests(
                "the partition cannot keep up with so many tenants; send again shortly",
                retry_after_ms=100,
            )
        self.commit.check_room(frame_bytes)

    def publish(
        self, view: FrameView, client_id: str | None = None, *, acks: Acks = Acks.QUORUM
    ) -> asyncio.Future[Appended]:
        """Queue a checked frame; the future completes when ``acks`` is satisfied.

        ``client_id`` is recorded as the name of the frame's producer.
        """
        if self._availability.error is not None:
            raise self._availability.error
        done = self.commit.append(view, acks=acks)
        self._name(view.header.producer_id, client_id, done)
        return done

    def publish_message(
        self, message: Message, by: SharedBy, client_id: str | None = None
    ) -> asyncio.Future[Appended]:
        """Queue a checked message; those that wait for the same write share a frame.

        Raises an error if it cannot be accepted now.
        """
        size_bytes = message_bytes(message)
        self.check_publish(size_bytes)
        done: asyncio.Future[Appended] = self._loop.create_future()
        self.commit.append_message(message, size_bytes, by, done)
        self._name(by.producer.producer_id, client_id, done)
        return done

    def append_message_for(
        self, done: Waiter[Appended], message: Message, by: SharedBy, client_id: str | None
    ) -> bool:
        """Do as :meth:`publish_message` for any waiter; return False where that takes a future."""
        if client_id is not None and self._is_new_name(by.producer.producer_id, client_id):
            return False
        size_bytes = message_bytes(message)
        self.check_publish(size_bytes)
        self.commit.append_message(message, size_bytes, by, done)
        return True

    def append_frame_for(
        self, done: Waiter[Appended], view: FrameView, client_id: str | None, acks: Acks
    ) -> bool:
        """Do as :meth:`publish` for any waiter; return False where that takes a future."""
        if client_id is not None and self._is_new_name(view.header.producer_id, client_id):
            return False
        self.check_publish(view.header.frame_bytes)
        self.commit.append_frame(view, done, acks=acks)
        return True

    def _is_new_name(self, producer_id: int, client_id: str) -> bool:
        return bool(producer_id) and self._state.producer_names.get(producer_id) != client_id

    def _name(
        self, producer_id: int, client_id: str | None, done: asyncio.Future[Appended]
    ) -> None:
        """Have a producer's name recorded with its first messages."""
        if client_id is not None and self._is_new_name(producer_id, client_id):
            done.add_done_callback(partial(self._record_name, producer_id, client_id))

    async def producers(self, _producer_id: int) -> ProducerTable:
        """Return the producer table of this partition, by its committed frames."""
        return self._state.producers

    def producer_snapshot(self, producer_id: int) -> SnapshotProducers:
        """Return the record of one producer as an event, to send it to another node."""
        return self._state.producers.snapshot_of(producer_id)

    def _record_name(
        self, producer_id: int, client_id: str, done: asyncio.Future[Appended]
    ) -> None:
        """Record a producer's name after its first messages are stored.

        No request waits for the record. A crash before it loses the name; the next publish records
        it again.
        """
        if done.cancelled() or done.exception() is not None:
            return  # nothing was stored under the name
        if self._state.producer_names.get(producer_id) == client_id:
            return  # a frame that was stored at the same time has recorded it
        try:
            self._availability.check()
            self._writer.commit.check_room(0)
            if self._writer.has_room:
                self._writer.record([Named(producer_id, client_id)])
        except GoqError:
            pass  # the event log is full: the next publish records it

    async def close(self) -> None:
        """Make queued frames durable and close the log; raise as the log does."""
        try:
            await self.commit.close()
        finally:
            self._on_delayed = self._on_failure = ignore

    @property
    def is_awaited(self) -> bool:
        """Whether consumers wait for messages, and can lease what is about to be written."""
        return (
            self._callbacks.is_awaited()
            and self._availability.error is None
            and not self._ready_manager.is_rebuilding
            and not self._is_disk_full()
        )

    def stage(self, batch: WriteBatch, written: Sequence[WrittenFrame]) -> None:
        """Enter frames that the event loop is about to write, and serve waiting consumers."""
        self._is_staged = True
        batch.is_vital = True  # without it the partition would have to be loaded again
        self._frames.add([CachedFrame(view) for view in batch.frames()])
        self._enter(written)
        self._callbacks.on_staged()

    def _on_commit(self, committed: Sequence[WrittenFrame]) -> None:
        if self._is_staged:
            self._is_staged = False
        else:
            self._enter(committed)
            self._callbacks.on_ready(None)
        committed_bytes = sum([each.view.header.frame_bytes for each in committed])
        is_snapshot_due = self._writer.count_published(committed_bytes)
        if is_snapshot_due and self._availability.error is None:
            self._writer.record_snapshot()

    def _enter(self, committed: Sequence[WrittenFrame]) -> None:
        """Enter frames into the state and the ready queues."""
        stats, state, manager = self._stats, self._state, self._ready_manager
        ready = manager.current
        stats.begin(self._loop.time())
        rows_entered = 0
        for view, appended, _, _ in committed:
            header = view.header
            end = appended.offset + header.message_count
            state.producers.add(header, appended.offset, appended.time_us)
            stats.last_append_ms = appended.time_us // 1000
            stats.published_messages += header.message_count
            stats.published_bytes += header.frame_bytes
            state.extend_to(end)
            rows = None
            has_rows = bool(header.attributes & ROW_ATTRIBUTES)
            rows_entered += has_rows * header.message_count
            if rows_entered > limits.ROWS_ENTERED_AT_ONCE or manager.entering is not None:
                manager.enter_later(_stamped(view, appended))
                continue
            if has_rows:
                rows = rows_of(_stamped(view, appended))
            ready.published(appended.offset, end, rows, appended.time_us // 1000)
            if rows is not None:
                self._on_delayed()
        ready.release()

    def _on_commit_failure(self, error: GoqError) -> None:
        self._callbacks.on_disk_failure(error)
        if self._log.failed or self._is_staged:
            self._on_failure(error)


def _read_frame(reader: LogReader, offset: int) -> FrameView | None:
    """Return the frame that begins at ``offset``; None if it is deleted or damaged."""
    frames = reader.read(offset, offset + 1, messages_max=1).frames
    return frames[0] if frames and frames[0].header.base_offset == offset else None


def _stamped(view: FrameView, appended: Appended) -> FrameView:
    """Return a frame with the offset and time that it got."""
    header = view.header._replace(base_offset=appended.offset, append_time_us=appended.time_us)
    return FrameView(header, view.buffer)
