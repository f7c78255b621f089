"""The start queue of a node: topics that are not open yet, though the node is ready.

A start opens topics with ``limits.START_PARTITIONS`` partitions, then the node is ready. The queue
opens the others, two at a time. A request that names a topic waits for it, and that topic is opened
at once. So each topic is recovered and checked before its first use, as without a queue. Only its
timers, retention and dead letters begin later.

A topic that cannot be opened stays in the queue and is tried again. Its requests get the error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator

from goq import limits
from goq.errors import GoqError, PartitionOffline, ShuttingDown
from goq.storage.catalog.rows import TopicRow

_log = logging.getLogger("goq.broker")
_OPENED_AT_ONCE = 2
_RETRY_PAUSE_S = 5.0


class StartQueue:
    """The topics that are still to be opened; ``open_topic`` opens one."""

    def __init__(
        self,
        open_topic: Callable[[TopicRow], Awaitable[object]],
        partitions_max: int = limits.START_PARTITIONS,
    ) -> None:
        self._open_topic = open_topic
        self._partitions_max = partitions_max
        self.rows: dict[str, TopicRow] = {}
        """The queued topics by name."""
        self._opening: dict[str, asyncio.Task[GoqError | None]] = {}
        self._worker: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.on_empty: Callable[[], None] = lambda: None
        """Called when all topics are open."""
        self.tried = asyncio.Event()
        """Set once each topic was opened, or could not be."""

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: str) -> bool:
        return name in self.rows

    @property
    def partition_count(self) -> int:
        """The number of partitions of these topics."""
        return sum(row.partitions for row in self.rows.values())

    def take(self, rows: Iterable[TopicRow]) -> list[TopicRow]:
        """Queue all topics but the first ones, which are returned: the start opens them itself."""
        first: list[TopicRow] = []
        partitions = 0
        for row in rows:
            if first and partitions + row.partitions > self._partitions_max:
                self.rows[row.name] = row
            else:
                first.append(row)
                partitions += row.partitions
        return first

    def start(self) -> None:
        """Open the queued topics in the background."""
        if self.rows:
            _log.info("opening %d more topics while the node is ready", len(self.rows))
            self._worker = asyncio.create_task(self._run())
        else:
            self.tried.set()

    async def _run(self) -> None:
        while self.rows:
            names = iter(list(self.rows))
            await asyncio.gather(*(self._open_each(names) for _ in range(_OPENED_AT_ONCE)))
            self.tried.set()
            if self.rows:
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def _open_each(self, names: Iterator[str]) -> None:
        for name in names:
            if name in self.rows and not self._is_stopped:
                await asyncio.shield(self._task(name))

    def _task(self, name: str) -> asyncio.Task[GoqError | None]:
        opening = self._opening.get(name)
        if opening is None:
            opening = self._opening[name] = asyncio.create_task(self._open(name))
        return opening

    async def _open(self, name: str) -> GoqError | None:
        """Open a topic; return why it could not be opened."""
        try:
            await self._open_topic(self.rows[name])
        except Exception as error:  # whatever keeps it from opening, others go on
            _log.error("topic %s cannot be opened: %s", name, error)
            if isinstance(error, GoqError):
                return error
            reason = f"topic {name} cannot be opened: {type(error).__name__}: {error}"
            return PartitionOffline(reason, retry_after_ms=int(1000 * _RETRY_PAUSE_S))
        else:
            del self.rows[name]
            if not self.rows:
                self.on_empty()
            return None
        finally:
            del self._opening[name]

    def check(self, name: str) -> None:
        """Raise ``PartitionOffline`` for a topic that is not open yet."""
        if name in self.rows:
            raise PartitionOffline(
                f"topic {name} is being opened: the node has just started", retry_after_ms=1000
            )

    async def wait_for(self, *names: str) -> None:
        """Open these topics now, if they are queued.

        Raises the error of one that cannot be opened, and ``ShuttingDown``.
        """
        for name in names:
            if name not in self.rows:
                continue
            if self._is_stopped:
                raise ShuttingDown("the node is stopping; try another or later")
            error = await asyncio.shield(self._task(name))
            if error is not None:
                raise error

    async def wait_for_all(self) -> None:
        """Wait until all topics are open; raises as :meth:`wait_for`."""
        await self.wait_for(*list(self.rows))

    def stop(self) -> None:
        """Open no further topic; requests that wait for one get ``ShuttingDown``."""
        self._is_stopped = True

    async def close(self) -> None:
        """Stop, and wait for the topics that are being opened."""
        self.stop()
        if self._worker is not None:
            self._worker.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
