"""The topics of a cluster, copied through one of its nodes from the leaders of the partitions.

A log is planned up to its high watermark: what is acknowledged is in it, whatever happens to nodes
afterwards. First the event logs of all partitions are planned, then all message logs. So no event
is about a message that the backup lacks, and none says that a copy is stored which another topic
lacks. What was stored between the two moments is in the backup without its events, as after a
crash.

A node that dies, or a partition that moves, makes all be planned again, once there is a leader.
Files that were copied by then are not copied again, unless they come from another node now.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelled
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from goq.access.token_record import TokenRecord
from goq.backup.manifest import StoredPartition
from goq.backup.node_source import Copying, TopicPlan
from goq.backup.planned_files import (
    FileStamp,
    PlannedFile,
    PlannedLog,
    PlannedPartition,
    PlannedTopic,
)
from goq.errors import GoqError, NotFound, TooManyRequests, Unavailable
from goq.schedules.schedule_record import ScheduleRecord

T = TypeVar("T")
LOG_NAMES: Final = ("messages", "events")
_PLANS_AT_ONCE: Final = 16
_CHECK_S: Final = 0.5
_PAUSE_S: Final = 1.0
_TRIES: Final = 60


class RemoteFile(NamedTuple):
    """A file of a log on another node."""

    base_offset: int
    size_bytes: int
    generation: int
    stamp: FileStamp
    read: Callable[[int, int], Awaitable[bytes]]
    """Returns bytes from a position on, at most so many. Raises ``GoqError``."""


class RemoteLog(NamedTuple):
    """A log on its leader, up to its high watermark."""

    end_offset: int
    files: Sequence[RemoteFile]
    list_archived: Callable[[], Awaitable[Sequence[RemoteFile]]]


class ClusterTopics(Protocol):
    """The topics of a cluster, asked on the event loop. All methods raise ``GoqError``."""

    @property
    def tokens(self) -> Mapping[str, TokenRecord]:
        """The access tokens by name."""

    @property
    def schedules(self) -> Mapping[str, ScheduleRecord]:
        """The schedules by name."""

    @property
    def epoch(self) -> int:
        """The highest leader epoch of all partitions, or the node's own number of starts."""

    async def topics(self) -> Sequence[PlannedTopic]:
        """Return all topics by the newest metadata."""

    async def plan_log(self, topic: PlannedTopic, number: int, which: int) -> RemoteLog:
        """Return a log of a partition as its leader has it: 0 messages, 1 events."""


class ClusterSource:
    """The topics of the cluster; closed with the event loop that it was made on."""

    def __init__(self, cluster: ClusterTopics) -> None:
        self._cluster = cluster
        self._stopped = threading.Event()

    @property
    def tokens(self) -> Mapping[str, TokenRecord]:
        """The access tokens by name."""
        return self._cluster.tokens

    @property
    def schedules(self) -> Mapping[str, ScheduleRecord]:
        """The schedules by name."""
        return self._cluster.schedules

    @property
    def epoch(self) -> int:
        """A number that no leader epoch exceeds."""
        return self._cluster.epoch

    async def plan(self, *, is_partial: bool = False) -> Sequence[TopicPlan]:
        """Return all topics, the events of all of them planned before the messages.

        With ``is_partial``, without partitions that no leader plans; raises ``GoqError`` if none
        is left.
        """
        topics = await self._cluster.topics()
        events = await self._plan_logs(topics, 1, is_partial=is_partial)
        messages = await self._plan_logs(topics, 0, is_partial=is_partial)
        return [
            TopicPlan(
                topic,
                [
                    PlannedPartition(
                        topic.folder,
                        number,
                        messages[topic.name, number],
                        events[topic.name, number],
                    )
                    for number in topic.numbers
                    if (topic.name, number) in messages and (topic.name, number) in events
                ],
            )
            for topic in topics
        ]

    async def _plan_logs(
        self, topics: Sequence[PlannedTopic], which: int, *, is_partial: bool
    ) -> dict[tuple[str, int], PlannedLog]:
        loop, turns = asyncio.get_running_loop(), asyncio.Semaphore(_PLANS_AT_ONCE)

        async def plan(topic: PlannedTopic, number: int) -> PlannedLog:
            plan_log = partial(self._cluster.plan_log, topic, number, which)
            async with turns:
                found = await plan_log()
            blocking = _BlockingReader(loop, self._stopped)
            where = Path(topic.folder, str(number), LOG_NAMES[which])
            return PlannedLog(
                found.end_offset,
                [blocking.planned(where, file) for file in found.files],
                lambda: [
                    blocking.planned(where, file) for file in blocking.call(found.list_archived)
                ],
                lambda: blocking.call(plan_log).files[0].base_offset,
            )

        places = [(topic, number) for topic in topics for number in topic.numbers]
        plans = [asyncio.ensure_future(plan(*place)) for place in places]
        try:
            found = await asyncio.gather(*plans, return_exceptions=is_partial)
        finally:
            for each in plans:
                each.cancel()
        logs: dict[tuple[str, int], PlannedLog] = {}
        failure: BaseException | None = None
        for (topic, number), log in zip(places, found, strict=True):
            if isinstance(log, PlannedLog):
                logs[topic.name, number] = log
            else:
                failure = log
                if not isinstance(log, GoqError):
                    raise log
        if failure is not None and not logs:
            raise failure
        return logs

    async def copy(self, copying: Copying) -> StoredPartition:
        """Run the steps of a copy in a thread: they wait for other nodes."""

        def run() -> StoredPartition:
            while True:
                try:
                    next(copying)
                except StopIteration as done:
                    stored: StoredPartition = done.value
                    return stored

        try:
            running = asyncio.ensure_future(asyncio.to_thread(run))
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._stopped.set()
            await asyncio.wait([running])
            raise

    def retry_pause_s(self, error: Exception, tries: int) -> float | None:
        """Return a pause if another leader, or the same one later, may have what is asked for."""
        may_pass = isinstance(error, FileNotFoundError | Unavailable | NotFound | TooManyRequests)
        return _PAUSE_S if may_pass and tries < _TRIES else None


class _BlockingReader:
    """Reads files of other nodes from a thread, by calls that the event loop makes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stopped: threading.Event) -> None:
        self._loop = loop
        self._stopped = stopped
        self._files: dict[Path, RemoteFile] = {}

    def planned(self, where: Path, file: RemoteFile) -> PlannedFile:
        """Return a file as a backup copies it."""
        path = where / f"{file.base_offset}.{file.generation}.{file.stamp.inode}"
        self._files[path] = file
        return PlannedFile(
            path, file.base_offset, file.size_bytes, self, file.generation, stamp=file.stamp
        )

    def read(self, path: Path, position: int, size_bytes: int) -> memoryview:
        """Return bytes of a file; raise ``FileNotFoundError`` if the node lacks some of them."""
        data, file = bytearray(), self._files[path]
        while len(data) < size_bytes:
            try:
                piece = self.call(file.read, position + len(data), size_bytes - len(data))
            except NotFound as error:
                raise FileNotFoundError(f"{path}: {error.detail}") from error
            if not piece:
                raise FileNotFoundError(f"{path} is shorter now than it was")
            data += piece
        return memoryview(data)

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Call a function on the event loop; return its result."""

        async def run() -> T:
            return await function(*arguments)

        if self._stopped.is_set():
            raise Unavailable("the node is stopping")
        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        while True:
            try:
                return future.result(_CHECK_S)
            except TimeoutError:
                if self._stopped.is_set():
                    future.cancel()
                    raise Unavailable("the node is stopping") from None
            except FutureCancelled:
                raise Unavailable("the node is stopping") from None
