"""A node's logs as the source of exports and of Spark, read through the client.

:func:`ahead` reads the next frames in a thread while the last are converted.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from goq import limits
from goq.client import Client
from goq.client.messages import ReadBatch
from goq.errors import InvalidInput, PartitionNotFound
from goq.frame.projection import OPTIONAL_COLUMNS
from goq.frame.view import FrameView

_BEHIND_ALL = 2**62
_PIECE_BYTES = 4 * limits.MIB  # large beside the cost of a request, and quick to read


class LogBounds(NamedTuple):
    """The offsets of a partition, from ``start`` up to ``end``."""

    start: int
    end: int


class FrameBatch(NamedTuple):
    """The frames of one answer, and the offset after them.

    ``missing`` are requested offsets that are damaged, or deleted and not archived.
    """

    frames: list[FrameView]
    next_offset: int
    missing: list[tuple[int, int]]


class LogSource(Protocol):
    """The logs of topics, as the export and Spark read them."""

    def topic_id(self, topic: str) -> str:
        """Return what tells the topic from others of its name; "" where the node does not say."""
        ...

    def bounds(self, topic: str) -> Mapping[int, LogBounds]:
        """Return the current message offsets of each partition."""
        ...

    def default_lane(self, topic: str) -> int:
        """Return the lane of messages in frames without a lane column."""
        ...

    def lane_names(self, topic: str) -> Sequence[str]:
        """Return the names of the lanes, from lane 0 on; none where they have only numbers."""
        ...

    def read_messages(
        self, topic: str, partition: int, start: int, end: int
    ) -> Iterator[FrameBatch]:
        """Yield the messages from ``start`` up to ``end``, some frames at a time.

        The first and the last frame may contain other messages too.
        """
        ...

    def event_bounds(self, topic: str) -> Mapping[int, LogBounds]:
        """Return the current event sequences of each partition."""
        ...

    def read_events(self, topic: str, partition: int, start: int, end: int) -> Iterator[FrameBatch]:
        """Yield the events from sequence ``start`` up to ``end``, like :meth:`read_messages`."""
        ...


class NodeSource:
    """Reads through a client at background priority: live traffic goes first.

    With ``include_deleted`` archived messages are read too. If the rows have only some ``columns``,
    the node sends values and headers only where these are among them; a node of an earlier version
    sends whole messages.
    """

    def __init__(
        self,
        client: Client,
        *,
        include_deleted: bool = False,
        columns: Collection[str] = OPTIONAL_COLUMNS,
    ) -> None:
        self._client = client
        self._include_deleted = include_deleted
        self._without = [name for name in OPTIONAL_COLUMNS if name not in columns]

    def topic_id(self, topic: str) -> str:
        """Return what tells the topic from others of its name; "" where the node does not say."""
        return self._client.describe_topic(topic).id

    def time_us(self, topic: str) -> int:
        """Return the node's time in microseconds; this machine's if the node does not say."""
        now = self._client.describe_topic(topic).time
        return time.time_ns() // 1000 if now is None else round(now.timestamp() * 1_000_000)

    def bounds(self, topic: str) -> Mapping[int, LogBounds]:
        """Return the current message offsets of each partition.

        Raises ``PartitionOffline`` for one that has no leader for longer than the client waits: a
        topic is described without its offsets then, and would seem to be empty.
        """
        found = self._client.describe_topic(topic)
        is_archived = self._include_deleted and found.archived is not None
        bounds: dict[int, LogBounds] = {}
        for each in found.partitions:
            if is_archived or each.leader is None or not each.online:
                bounds[each.partition] = self._ask_bounds(topic, each.partition)
            else:
                bounds[each.partition] = LogBounds(each.start_offset, each.high_watermark)
        return bounds

    def _ask_bounds(self, topic: str, partition: int) -> LogBounds:
        piece = self._client.read(
            topic,
            partition=partition,
            offset=_BEHIND_ALL,
            limit=1,
            include_deleted=self._include_deleted,
        )
        return LogBounds(piece.start, piece.end)

    def default_lane(self, topic: str) -> int:
        """Return the lane of frames without a lane column: ``normal``, or the middle one."""
        names = self.lane_names(topic)
        return names.index("normal") if "normal" in names else (len(names) or 256) // 2

    def lane_names(self, topic: str) -> list[str]:
        """Return the names of the lanes, from lane 0 on; none where they have only numbers."""
        lanes = self._client.describe_topic(topic).settings["priority.lanes"]
        return [] if lanes == "numbers" else lanes.split(",")

    def read_messages(
        self, topic: str, partition: int, start: int, end: int
    ) -> Iterator[FrameBatch]:
        """Yield the messages from ``start`` up to ``end``, some frames at a time."""
        return _frame_batches(partial(self._read, topic, partition), start, end)

    def _read(self, topic: str, partition: int, offset: int) -> ReadBatch:
        read = partial(
            self._client.read,
            topic,
            partition=partition,
            offset=offset,
            bytes_max=_PIECE_BYTES,
            background=True,
            include_deleted=self._include_deleted,
        )
        try:
            return read(without=self._without)
        except InvalidInput as error:
            if not self._without or error.field != "without":
                raise
        self._without = []  # the node's version does not know it, and will not
        return read()

    def event_bounds(self, topic: str) -> Mapping[int, LogBounds]:
        """Return the current event sequences of each partition."""
        found = {}
        for each in self._client.describe_topic(topic).partitions:
            partition = each.partition
            piece = self._client.read_events(
                topic,
                partition=partition,
                sequence=_BEHIND_ALL,
                include_deleted=self._include_deleted,
            )
            found[partition] = LogBounds(piece.start, piece.end)
        return found

    def read_events(self, topic: str, partition: int, start: int, end: int) -> Iterator[FrameBatch]:
        """Yield the events from sequence ``start`` up to ``end``, some frames at a time."""
        return _frame_batches(
            lambda at: self._client.read_events(
                topic,
                partition=partition,
                sequence=at,
                background=True,
                include_deleted=self._include_deleted,
            ),
            start,
            end,
        )


def _frame_batches(read: Callable[[int], ReadBatch], start: int, end: int) -> Iterator[FrameBatch]:
    at = start
    while at < end:
        piece = read(at)
        if piece.next <= at:
            raise PartitionNotFound(
                f"{piece.topic}, partition {piece.partition}, ends at {piece.end}, before offset"
                f" {end}: the topic was made anew, or its node lost what it had"
            )
        missing = [(d.start_offset, d.end_offset) for d in piece.damaged]
        missing = sorted([(at, piece.start), *missing, *piece.deleted])
        missing = [(max(a, at), min(b, end)) for a, b in missing if max(a, at) < min(b, end)]
        frames = [view for view in piece.frames if view.header.base_offset < end]
        at = min(piece.next, end)
        yield FrameBatch(frames, at, missing)


T = TypeVar("T")


class _Ended:
    """The end of a source: an error, or None."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


@contextmanager
def ahead(source: Iterator[T], depth: int) -> Generator[Iterator[T], None, None]:
    """Iterate over ``source`` in a thread, up to ``depth`` items ahead.

    An error of the source is raised in place of its item. Leaving the context stops the thread
    after its current item.
    """
    made: queue.Queue[T | _Ended] = queue.Queue(depth)
    stopping = threading.Event()

    def make() -> None:
        error: BaseException | None = None
        try:
            for item in source:
                made.put(item)
                if stopping.is_set():
                    return
        except BaseException as caught:
            error = caught
        made.put(_Ended(error))

    def items() -> Iterator[T]:
        while True:
            item = made.get()
            if isinstance(item, _Ended):
                if item.error is not None:
                    raise item.error
                return
            yield item

    thread = threading.Thread(target=make, name="goq-ahead", daemon=True)
    thread.start()
    try:
        yield items()
    finally:
        stopping.set()
        while thread.is_alive():  # it may wait for room in the queue
            try:
                made.get(timeout=0.01)
            except queue.Empty:
                continue
        thread.join()
