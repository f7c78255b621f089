"""A round: the pushed updates of one partition that a follower stores at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

from goq.broker.log.commit_turn import CommitTurn, JournalWrite
from goq.cluster.replication.follower import FollowerReplica, parse_frames
from goq.cluster.replication.protocol import LogUpdate, PartitionUpdate
from goq.errors import InvalidFrame
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from goq.storage.log.replicated import begin_replicated
from goq.storage.log.segment import WriteBatch


class PushedUpdate(NamedTuple):
    """The update of one partition in the push ``number``, and its frames."""

    number: int
    update: PartitionUpdate
    frames: memoryview


class _LogPlan:
    """The frames that one log gets in one round, all in one segment of the leader's."""

    __slots__ = ("end_offset", "log", "segment_base", "views", "which")

    def __init__(self, log: Log, which: int, update: LogUpdate) -> None:
        self.log = log
        self.which = which
        self.segment_base = update.segment_base
        self.views: list[FrameView] = []
        self.end_offset = log.end_offset


class PushRound:
    """Updates of one partition, in their order, that end where the leader begins a segment."""

    __slots__ = ("_left", "_logs", "_on_end", "error", "follower", "numbers", "session", "updates")

    def __init__(
        self, follower: FollowerReplica, session: int, on_end: Callable[[PushRound], None]
    ) -> None:
        self.follower = follower
        self.session = session
        self.updates: list[PartitionUpdate] = []
        self.numbers: list[int] = []
        """The pushes of these updates."""
        self.error: Exception | None = None
        self._logs: dict[int, _LogPlan] = {}
        self._left = 0
        self._on_end = on_end

    def can_join(self, update: PartitionUpdate) -> bool:
        """Whether an update continues what the round has so far in the same segments."""
        for which, planned in self._logs.items():
            log_update = update.events if which else update.messages
            if log_update is None or not log_update.frame_bytes:
                continue
            if log_update.segment_base != planned.segment_base:
                return False
        return True

    def add(self, pushed: PushedUpdate) -> None:
        """Add an update; raise ``InvalidFrame`` unless it continues the logs."""
        number, update, frames = pushed
        if update.leader_epoch != self.follower.leader_epoch:
            raise InvalidFrame(f"a push of {update.key} is of another leadership")
        for which, log_update in enumerate((update.messages, update.events)):
            if log_update is not None:
                self._plan_log(which, log_update, frames[: log_update.frame_bytes])
                frames = frames[log_update.frame_bytes :]
        self.updates.append(update)
        self.numbers.append(number)

    def _plan_log(self, which: int, update: LogUpdate, frames: memoryview) -> None:
        planned, log = self._logs.get(which), self.follower.logs[which]
        end_offset = log.end_offset if planned is None else planned.end_offset
        is_append = update.diverges_at is None and update.lost is None and not update.must_reset
        if not is_append or update.start_offset > end_offset:
            raise InvalidFrame(f"a push of {self.follower.key} does not continue {log.directory}")
        if not frames:
            return
        if planned is None:
            planned = self._logs[which] = _LogPlan(log, which, update)
        for view in parse_frames(frames):
            header = view.header
            if header.base_offset != planned.end_offset or header.attributes & Attribute.REMOVED:
                raise InvalidFrame(
                    f"a pushed frame at {header.base_offset} cannot follow {planned.end_offset}"
                    f" of {log.directory}"
                )
            planned.views.append(view)
            planned.end_offset = header.end_offset

    def write(self, turn: CommitTurn, executor: Executor) -> None:
        """Write and sync all of it, with the lock of the logs held; ``on_end`` is called then."""
        writes = [
            _LogWrite(self.follower, plan, executor, self._on_written)
            for plan in self._logs.values()
        ]
        self._left = len(writes)
        for write in writes:
            turn.join(write)
        if not writes:
            self._on_end(self)

    def _on_written(self, error: Exception | None) -> None:
        self.error = self.error or error
        self._left -= 1
        if not self._left:
            self._on_end(self)


class _LogWrite:
    """The write of one log in a commit turn; nothing waits for it that could follow it."""

    __slots__ = ("_executor", "_follower", "_on_written", "_plan")

    def __init__(
        self,
        follower: FollowerReplica,
        plan: _LogPlan,
        executor: Executor,
        on_written: Callable[[Exception | None], None],
    ) -> None:
        self._follower = follower
        self._plan = plan
        self._executor = executor
        self._on_written = on_written

    @property
    def stages(self) -> bool:
        """Whether others may follow it in the same record."""
        return False

    @property
    def queued_bytes(self) -> int:
        """The bytes of its frames."""
        return sum(view.header.frame_bytes for view in self._plan.views)

    def start(self) -> JournalWrite | None:
        """Return the batch for the record of the turn, or write it in a thread."""
        plan = self._plan
        try:
            batch = begin_replicated(plan.log, plan.views, plan.segment_base)
        except Exception as error:
            self._on_written(error)
            return None
        if plan.log.can_journal(batch):
            return JournalWrite(plan.log, batch, partial(self._finish, batch))
        loop = asyncio.get_running_loop()

        def write() -> None:
            error: Exception | None = None
            try:
                plan.log.write(batch)
            except Exception as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(self._finish, batch, error)
            except RuntimeError:
                return  # the loop is closed

        self._executor.submit(write)
        return None

    def _finish(self, batch: WriteBatch, error: Exception | None) -> None:
        plan = self._plan
        if error is None:
            try:
                sealed = plan.log.commit(batch)
                epoch = plan.views[-1].header.leader_epoch
                self._follower.on_appended(plan.which, epoch, sealed)
            except Exception as raised:
                error = raised
        self._on_written(error)
