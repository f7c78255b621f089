"""The follower's side of the pushes of one leader's node.

All pushes that have arrived are stored together: they join the node's commit turn, so that small
batches of all partitions, also of those that this node leads, share one write and one sync. Those
that arrive meanwhile are stored next. The report names the last push that is stored.

Whatever does not simply continue the logs ends the session: a push of another epoch, a gap, frames
that compaction has changed, a log that something else is changing. The fetches of the next session
settle it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple, Protocol

from goq.broker.log.commit_turn import CommitTurn, JournalWrite
from goq.cluster.replication.follower import FollowerReplica, parse_frames
from goq.cluster.replication.protocol import LogUpdate, PartitionKey, PartitionUpdate
from goq.cluster.replication.push.protocol import PeerStream, Push, PushHead, encode_stored
from goq.errors import InvalidFrame
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from goq.storage.log.replicated import begin_replicated
from goq.storage.log.segment import WriteBatch


class PushHost(Protocol):
    """The fetcher that receives the pushes."""

    def on_pushed(self, follower: FollowerReplica) -> None:
        """A push is stored."""

    def on_mismatch(self, reason: str) -> None:
        """The pushes do not continue the logs: another session must begin."""

    def on_write_failure(self, key: PartitionKey, error: Exception) -> None:
        """A partition cannot be stored here."""

    async def record_sealed(self, follower: FollowerReplica) -> None:
        """Record the segments that a push has sealed."""


class _LogPlan:
    """The frames that one log gets in one round, all in one segment of the leader's."""

    __slots__ = ("end_offset", "log", "segment_base", "views", "which")

    def __init__(self, log: Log, which: int, update: LogUpdate) -> None:
        self.log = log
        self.which = which
        self.segment_base = update.segment_base
        self.views: list[FrameView] = []
        self.end_offset = log.end_offset


class _ReplicaPlan(NamedTuple):
    follower: FollowerReplica
    logs: dict[int, _LogPlan]
    updates: list[PartitionUpdate]


class PushReceiver:
    """Stores the pushes of a session to ``followers``; :meth:`attach` begins one."""

    def __init__(
        self,
        followers: Mapping[PartitionKey, FollowerReplica],
        turn: CommitTurn,
        executor: Executor,
        host: PushHost,
    ) -> None:
        self.session = 0
        """The session whose pushes are taken, 0 for none."""
        self._followers = followers
        self._turn = turn
        self._executor = executor
        self._host = host
        self._stream: PeerStream | None = None
        self._queue: deque[Push] = deque()
        self._idle: asyncio.Future[None] | None = None
        """The end of the round under way, None between rounds."""

    def attach(self, session: int, stream: PeerStream) -> None:
        """Take the pushes of a session from now on."""
        self.detach()
        self.session, self._stream = session, stream

    def detach(self) -> None:
        """Take no more pushes; what is being written is still written."""
        self.session, self._stream = 0, None
        self._queue.clear()

    async def idle(self) -> None:
        """Return when nothing is being written."""
        while self._idle is not None:
            await asyncio.wait([self._idle])

    def receive(self, push: Push) -> None:
        """Store a push; one of another session is dropped."""
        if push.head.session != self.session:
            return
        self._queue.append(push)
        if self._idle is None:
            self._begin_round()

    def _begin_round(self) -> None:
        session, number, plans = self.session, 0, dict[PartitionKey, _ReplicaPlan]()
        try:
            while self._queue and self._can_join(self._queue[0].head, plans):
                push = self._queue.popleft()
                number = push.head.number
                self._add(push, plans)
        except InvalidFrame as error:
            self._host.on_mismatch(error.detail)
            return
        locked: list[FollowerReplica] = []
        for plan in plans.values():
            if not plan.follower.log_lock.try_acquire():
                for follower in locked:
                    follower.log_lock.release()
                self._host.on_mismatch(f"something else changes {plan.follower.key}")
                return
            locked.append(plan.follower)
        self._idle = asyncio.get_running_loop().create_future()
        _Round(self._turn, self._executor, partial(self._end_round, session, number), plans)

    def _can_join(self, head: PushHead, plans: Mapping[PartitionKey, _ReplicaPlan]) -> bool:
        """Whether a push continues what the round has so far in the same segments."""
        for update in head.updates:
            plan = plans.get(update.key)
            for which, log_update in enumerate((update.messages, update.events)):
                if plan is not None and log_update is not None and log_update.frame_bytes:
                    planned = plan.logs.get(which)
                    if planned is not None and planned.segment_base != log_update.segment_base:
                        return False
        return True

    def _add(self, push: Push, plans: dict[PartitionKey, _ReplicaPlan]) -> None:
        frames = push.frames
        for update in push.head.updates:
            follower = self._followers.get(update.key)
            if follower is None or update.leader_epoch != follower.leader_epoch:
                raise InvalidFrame(f"a push of {update.key} is of another leadership")
            plan = plans.get(update.key)
            if plan is None:
                plan = plans[update.key] = _ReplicaPlan(follower, {}, [])
            plan.updates.append(update)
            for which, log_update in enumerate((update.messages, update.events)):
                if log_update is not None:
                    own = frames[: log_update.frame_bytes]
                    frames = frames[log_update.frame_bytes :]
                    _plan_log(plan, which, log_update, own)

    def _end_round(
        self,
        session: int,
        number: int,
        plans: Mapping[PartitionKey, _ReplicaPlan],
        errors: Mapping[PartitionKey, Exception],
    ) -> None:
        followers = [plan.follower for plan in plans.values()]
        for follower in followers:
            follower.log_lock.release()
        for key, error in errors.items():
            if isinstance(error, InvalidFrame):
                self._host.on_mismatch(error.detail)
            else:
                self._host.on_write_failure(key, error)
        for key, plan in plans.items():
            if key not in errors:
                for update in plan.updates:
                    plan.follower.note_bounds(update)
        if any(follower.sealed_segments for follower in followers):
            recording = asyncio.ensure_future(self._record(followers))
            recording.add_done_callback(
                lambda _done: self._finish_round(session, number, followers, bool(errors))
            )
        else:
            self._finish_round(session, number, followers, bool(errors))

    async def _record(self, followers: list[FollowerReplica]) -> None:
        for follower in followers:
            if follower.sealed_segments:
                await self._host.record_sealed(follower)

    def _finish_round(
        self, session: int, number: int, followers: list[FollowerReplica], has_failed: bool
    ) -> None:
        idle, self._idle = self._idle, None
        assert idle is not None
        idle.set_result(None)
        if session == self.session and self._stream is not None and not has_failed:
            self._stream.send(encode_stored(session, number))
        for follower in followers:
            self._host.on_pushed(follower)
        if self._queue and self._idle is None:
            self._begin_round()


def _plan_log(plan: _ReplicaPlan, which: int, update: LogUpdate, frames: memoryview) -> None:
    """Add the frames of an update; raise ``InvalidFrame`` unless they continue the log."""
    planned = plan.logs.get(which)
    log = plan.follower.logs[which]
    end_offset = log.end_offset if planned is None else planned.end_offset
    is_append = update.diverges_at is None and update.lost is None and not update.must_reset
    if not is_append or update.start_offset > end_offset:
        raise InvalidFrame(f"a push of {plan.follower.key} does not continue {log.directory}")
    if not frames:
        return
    if planned is None:
        planned = plan.logs[which] = _LogPlan(log, which, update)
    for view in parse_frames(frames):
        header = view.header
        if header.base_offset != planned.end_offset or header.attributes & Attribute.REMOVED:
            raise InvalidFrame(
                f"a pushed frame at {header.base_offset} cannot follow {planned.end_offset}"
                f" of {log.directory}"
            )
        planned.views.append(view)
        planned.end_offset = header.end_offset


_OnRoundEnd = Callable[
    [Mapping[PartitionKey, _ReplicaPlan], Mapping[PartitionKey, Exception]], None
]


class _Round:
    """The writes of one round; calls ``on_end`` with the plans and the errors by partition."""

    def __init__(
        self,
        turn: CommitTurn,
        executor: Executor,
        on_end: _OnRoundEnd,
        plans: Mapping[PartitionKey, _ReplicaPlan],
    ) -> None:
        self._on_end = on_end
        self._plans = plans
        self._errors: dict[PartitionKey, Exception] = {}
        writes = [
            _LogWrite(plan.follower, planned, executor, self._on_written)
            for plan in plans.values()
            for planned in plan.logs.values()
        ]
        self._left = len(writes)
        for write in writes:
            turn.join(write)
        if not writes:
            on_end(plans, self._errors)

    def _on_written(self, key: PartitionKey, error: Exception | None) -> None:
        if error is not None:
            self._errors[key] = error
        self._left -= 1
        if not self._left:
            self._on_end(self._plans, self._errors)


class _LogWrite:
    """The write of one log in a commit turn; nothing waits for it that could follow it."""

    __slots__ = ("_done", "_executor", "_follower", "_plan")

    def __init__(
        self,
        follower: FollowerReplica,
        plan: _LogPlan,
        executor: Executor,
        done: Callable[[PartitionKey, Exception | None], None],
    ) -> None:
        self._follower = follower
        self._plan = plan
        self._executor = executor
        self._done = done

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
            self._done(self._follower.key, error)
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
        self._done(self._follower.key, error)
