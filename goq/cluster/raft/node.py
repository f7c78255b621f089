"""Raft member for use from an event loop; the Raft core runs on a thread of its own.

Two event loops take part: the application's, on which all public methods run, and the Raft
thread's. Calls cross with ``call_soon_threadsafe``; no state is shared but immutable values.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random, SystemRandom
from typing import Any

from pysyncobj import FAIL_REASON

from goq import limits
from goq.clock import next_beat
from goq.cluster.raft import codec
from goq.cluster.raft.driver import Driver, RaftSettings, RaftStatus
from goq.cluster.raft.member import RaftMember, check_member
from goq.cluster.raft.pysyncobj.core import now_s
from goq.cluster.raft.state_machine.state_machine import (
    AppliedEntry,
    Proposal,
    Refused,
    StateMachine,
)
from goq.errors import (
    BY_CODE,
    Conflict,
    GoqError,
    ShuttingDown,
    TimedOut,
    TooManyRequests,
    Unavailable,
    outcome_unknown,
)
from goq.event_loop import new_event_loop
from goq.storage.disk import Disk, RealDisk

_OUTCOME_UNKNOWN = (FAIL_REASON.LEADER_CHANGED, FAIL_REASON.UNKNOWN_OUTCOME)
_RETRY_S = 0.02
_DECISION_S = 5.0
_TLS_CLOSE_S = 0.05
_STOP_S = 10.0
_log = logging.getLogger(__name__)


class RaftNode:
    """A member of the Raft group, started and used on one event loop.

    ``machine`` belongs to the Raft thread until :meth:`stop` returns. ``on_status_change`` is
    called on the application's loop with each new status, ``on_applied`` with the applied entries,
    in order.
    """

    def __init__(
        self,
        settings: RaftSettings,
        machine: StateMachine,
        *,
        on_status_change: Callable[[RaftStatus], None] = lambda _status: None,
        on_applied: Callable[[list[AppliedEntry]], None] = lambda _applied: None,
        disk: Disk | None = None,
        random: Random | None = None,
    ) -> None:
        check_member(settings.member)
        self._settings = settings
        self._machine = machine
        self._on_status_change = on_status_change
        self._on_applied = on_applied
        self._disk = disk or RealDisk()
        self._random = random or SystemRandom()
        self._proposer = self._random.getrandbits(63)
        self._sequence = 0
        self._proposals = 0
        self._pending: set[asyncio.Future[Any]] = set()
        self._status_waiters: set[asyncio.Future[None]] = set()
        self._member_change = asyncio.Lock()
        self._app_loop: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._driver: Driver | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._signing: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Return once the member listens; it may not know a leader yet.

        Raises ``CorruptData``, ``OSError`` for an address that is not available, and any error of
        opening the files.
        """
        self._app_loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = self._app_loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="raft", daemon=True)
        self._thread.start()
        await started
        self._signing = asyncio.ensure_future(self._sign_life())

    async def _sign_life(self) -> None:
        """Tell the Raft thread that this event loop runs: a leader that stands still hands over.

        This call is safe from here, and wakes no thread that rests.
        """
        while True:
            await next_beat(limits.RAFT_OWNER_SIGN_S)
            if self._driver is not None:
                self._driver.on_owner_alive()

    async def stop(self) -> None:
        """Stop the thread and close everything; pending calls raise ``TimedOut``."""
        if self._signing is not None:
            self._signing.cancel()
        if self._loop is not None and self._stopping is not None:
            self._call_raft_loop(self._stopping.set)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _STOP_S)
        self._fail_pending("this node is stopping")

    @property
    def status(self) -> RaftStatus:
        """The status as this member knows it."""
        return RaftStatus() if self._driver is None else self._driver.status

    def silent_s(self) -> float:
        """Return for how long this member has not heard its leader; infinite if it never has."""
        in_touch_s = self.status.in_touch_s
        return math.inf if in_touch_s is None else now_s() - in_touch_s

    def is_cut_off(self) -> bool:
        """Return whether this member no longer hears its group.

        One that has heard nothing since its start may hear the others in a moment.
        """
        return limits.RAFT_CUT_OFF_S < self.silent_s() < math.inf

    def lease_age_s(self) -> float:
        """Return for how long this leader's lease has run; infinite without one."""
        return max(0.0, now_s() - self.status.lease_began_s)

    @property
    def leader(self) -> str | None:
        """The id of the leader, as far as this member knows."""
        return self.status.leader

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, unless it was deposed and does not know yet."""
        return self.status.is_leader

    def new_proposal_id(self) -> tuple[int, int]:
        """Return a new id, for a command that may have to be proposed again."""
        self._sequence += 1
        return self._proposer, self._sequence

    async def propose(
        self, command: Any, timeout_s: float = 5.0, proposal_id: tuple[int, int] | None = None
    ) -> Any:
        """Propose a command, and return its result once it is applied here.

        The command is sent again until the timeout, and applied once. Raises the error with which
        the state machine refused it; ``Unavailable`` if it certainly was not applied; ``TimedOut``
        if it may be applied, now or later: the same ``proposal_id`` may then be proposed again
        soon.
        """
        proposal_id = proposal_id or self.new_proposal_id()
        body = codec.encode_proposal(Proposal(codec.COMMAND_VERSION, *proposal_id, command))
        result = await self._submit(codec.REGULAR, body, timeout_s)
        if isinstance(result, Refused):
            raise BY_CODE.get(result.code, GoqError)(result.detail)
        return result

    async def propose_until_decided(self, command: Any) -> Any:
        """Propose a command until it cannot be applied later, and return its result.

        That may be ``Refused``, also because nobody knows any more whether it was applied before.
        Raises ``GoqError`` if it was never sent, or this member stops.
        """
        proposal_id, is_sent = self.new_proposal_id(), False
        body = codec.encode_proposal(Proposal(codec.COMMAND_VERSION, *proposal_id, command))
        while True:
            try:
                return await self._submit(codec.REGULAR, body, _DECISION_S)
            except TimedOut:
                is_sent = True  # it may be in a log, and is applied once: the id is the same
            except ShuttingDown:
                raise
            except GoqError:
                if not is_sent or self.status.failure is not None:
                    raise
                await asyncio.sleep(_RETRY_S)

    async def barrier(self, timeout_s: float = 5.0) -> None:
        """Return once everything that was committed before this call is applied here."""
        await self._submit(codec.NO_OP, b"", timeout_s)

    async def add_member(self, spec: str, timeout_s: float = 10.0) -> None:
        """Add a member, such as ``n4=10.0.0.4:9080``, which runs already and knows the others.

        All members must be reachable and have all committed entries: remove members that are lost
        for good first. The spec should name the disk, such as ``n4=10.0.0.4:9080/DISK``: no other
        disk is then accepted under this id, such as that of an earlier member. Raises ``Conflict``
        if the id is a member with another spec: remove that one first. An address changes in the
        same way.
        """
        check_member(spec)
        await self._change_members("add", spec, timeout_s)

    def learn_members(self, index: int, members: list[str]) -> None:
        """Count these as the members, with their disks, until the log here is at this index.

        A member told them at that index. Raises ``InvalidInput``.
        """
        driver, specs = self._driver, list(map(check_member, members))
        if driver is not None:
            self._call_raft_loop(lambda: driver.learn_members(index, specs))

    async def remove_member(self, id_: str, timeout_s: float = 10.0) -> None:
        """Remove a member, which is not informed: stop it. ``Conflict`` for the leader."""
        await self._change_members("rem", check_member(id_), timeout_s)

    async def transfer_leadership(self, to: str | None = None, timeout_s: float = 10.0) -> None:
        """Transfer the leadership to another member; ``Conflict`` unless this member leads."""
        if not self.is_leader:
            raise Conflict(
                f"this node is not the leader; ask the leader, {self.leader or 'none now'}"
            )
        async with _deadline(timeout_s, "the leadership was not transferred"):
            while self.is_leader:
                changed = self._next_status()
                await self._on_raft_thread(
                    lambda driver, done: driver.transfer_leadership(to, done)
                )
                await asyncio.wait([changed], timeout=self._settings.timing.election_max_s)

    # Submission

    async def _submit(self, kind: int, body: bytes, timeout_s: float) -> Any:
        """Append a command, within the limit on pending ones, and return its result."""
        if self._proposals >= limits.RAFT_COMMANDS_WAITING_MAX:
            raise TooManyRequests(
                "too many commands are pending in the cluster; send fewer at once"
            )
        self._proposals += 1
        try:
            return await self._submit_until_applied(kind, body, timeout_s)
        finally:
            self._proposals -= 1

    async def _submit_until_applied(self, kind: int, body: bytes, timeout_s: float) -> Any:
        """Append a command again until it is applied, and return its result."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        may_be_applied = False
        attempt_s = 4 * self._settings.timing.election_max_s
        while (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            try:
                async with asyncio.timeout(min(left_s, attempt_s)):
                    result, reason = await self._on_raft_thread(
                        lambda driver, done: driver.submit(kind, body, done)
                    )
            except TimeoutError:
                may_be_applied = True
                continue
            except GoqError as error:
                raise outcome_unknown(error) if may_be_applied else error from None
            if reason == FAIL_REASON.SUCCESS:
                return result
            if reason == FAIL_REASON.REQUEST_DENIED and kind == codec.MEMBERSHIP:
                raise Conflict("the leader does not accept this change now")
            may_be_applied = may_be_applied or reason in _OUTCOME_UNKNOWN
            await asyncio.sleep(_RETRY_S)
        if may_be_applied:
            raise TimedOut(
                "the cluster did not answer in time; the command may have been applied or not"
            )
        raise Unavailable("the cluster has no leader that this node can reach; try again")

    async def _change_members(self, operation: str, spec: str, timeout_s: float) -> None:
        id_ = str(RaftMember(spec).id)
        what = f"the membership change was not committed: {operation} {id_}"
        async with self._member_change, _deadline(timeout_s, what):
            while True:
                await self.barrier(timeout_s)  # so that the members known here are current
                known = {_id(member): member for member in self.status.members}
                if operation == "add" and known.get(id_, spec) != spec:
                    raise Conflict(
                        f"{id_} is already a member, as {known[id_]}; remove it first (goq cluster"
                        f" leave {id_})"
                    )
                if (id_ in known) == (operation == "add"):
                    return
                if operation == "add" and len(self.status.members) >= limits.RAFT_MEMBERS_MAX:
                    raise Conflict(
                        f"at most {limits.RAFT_MEMBERS_MAX} members are allowed; remove one"
                    )
                if operation == "rem" and id_ == self.leader:
                    raise Conflict(f"{id_} is the leader; transfer the leadership first")
                try:
                    body = codec.encode_change(operation, spec)
                    await self._submit(codec.MEMBERSHIP, body, timeout_s)
                except Conflict:
                    await asyncio.sleep(_RETRY_S)

    async def _on_raft_thread(
        self, act: Callable[[Driver, Callable[..., None]], None]
    ) -> tuple[Any, int]:
        """Run ``act`` on the Raft thread, and return the arguments of its callback."""
        driver, app = self._driver, asyncio.get_running_loop()
        if driver is None or self._stopping is None or self._stopping.is_set():
            raise ShuttingDown("this node is stopping, or has not started; ask another one")
        if driver.status.failure is not None:
            raise Unavailable(f"this member of the cluster has stopped: {driver.status.failure}")
        answer: asyncio.Future[tuple[Any, int]] = app.create_future()

        def done(result: Any, reason: int) -> None:
            _call_soon(app, lambda: _resolve(answer, (result, reason)))

        self._pending.add(answer)
        try:
            self._call_raft_loop(lambda: act(driver, done))
            return await answer
        finally:
            self._pending.discard(answer)

    def _call_raft_loop(self, call: Callable[[], Any]) -> None:
        assert self._loop is not None
        _call_soon(self._loop, call)

    def _next_status(self) -> asyncio.Future[None]:
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._status_waiters.add(changed)
        return changed

    def _on_driver_status(self, status: RaftStatus) -> None:
        for changed in self._status_waiters:
            _resolve(changed, None)
        self._status_waiters.clear()
        if status.failure is not None:
            self._fail_pending(f"this member of the cluster has stopped: {status.failure}")
        self._on_status_change(status)

    def _fail_pending(self, reason: str) -> None:
        for answer in self._pending:
            _reject(answer, TimedOut(f"{reason}; the command may have been applied or not"))

    # The Raft thread

    def _run(self, started: asyncio.Future[None]) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self._main(started))

    async def _main(self, started: asyncio.Future[None]) -> None:
        app = self._app_loop
        assert app is not None
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        driver = Driver(
            self._settings,
            self._machine,
            disk=self._disk,
            random=self._random,
            on_status_change=lambda status: _call_soon(app, lambda: self._on_driver_status(status)),
            on_applied=lambda applied: _call_soon(app, lambda: self._on_applied(applied)),
        )
        try:
            await driver.start()
        except Exception as error:
            failure = error
            _call_soon(app, lambda: _reject(started, failure))
            return
        self._driver = driver
        _call_soon(app, lambda: _resolve(started, None))
        await self._stopping.wait()
        driver.stop()
        if self._settings.credentials.server_tls is not None:
            await asyncio.sleep(_TLS_CLOSE_S)  # TLS connections need a moment to close


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # the loop has ended, and no caller is left on it
        _log.debug("an event loop has ended before all its calls were delivered")


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


@asynccontextmanager
async def _deadline(timeout_s: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise TimedOut(f"{what} in time; look at the members, and try again") from None


def _id(spec: str) -> str:
    return str(RaftMember(spec).id)
