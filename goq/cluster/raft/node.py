"""A member of a cluster: a Raft node on a thread of its own, for use from an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random, SystemRandom
from typing import Any

from pysyncobj import FAIL_REASON

from goq import limits
from goq.cluster.raft import codec
from goq.cluster.raft.driver import Driver, RaftSettings, RaftStatus
from goq.cluster.raft.member import RaftMember, check_member
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
)
from goq.storage.disk import Disk, RealDisk

_PERHAPS_APPLIED = (FAIL_REASON.LEADER_CHANGED, FAIL_REASON.UNKNOWN_OUTCOME)
_PAUSE_S = 0.02
_PARTING_S = 0.05
_STOP_S = 10.0
_log = logging.getLogger(__name__)


class RaftNode:
    """A member, started and used on one event loop; ``machine`` belongs to its thread until then.

    ``on_status_change`` and ``on_applied`` are called on that event loop: with the status when it
    changes, and with what was applied here, in order.
    """

    def __init__(
        self,
        settings: RaftSettings,
        machine: StateMachine,
        *,
        on_status_change: Callable[[RaftStatus], None] = lambda _view: None,
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
        self._waiting: set[asyncio.Future[Any]] = set()
        self._watching: set[asyncio.Future[None]] = set()
        self._changing = asyncio.Lock()
        self._app: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._driver: Driver | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Return once the member listens; it need not know a leader then.

        Raises ``CorruptData``, ``OSError`` for an address that cannot be had, and what else
        opening its files may raise.
        """
        self._app = asyncio.get_running_loop()
        started: asyncio.Future[None] = self._app.create_future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="raft", daemon=True)
        self._thread.start()
        await started

    async def stop(self) -> None:
        """Stop the thread and close everything; what waits gets ``ShuttingDown``."""
        if self._loop is not None and self._stopping is not None:
            self._tell(self._stopping.set)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _STOP_S)
        self._give_up(ShuttingDown("this node is stopping; ask another one"))

    @property
    def status(self) -> RaftStatus:
        """How things stand, as this member knows."""
        return RaftStatus() if self._driver is None else self._driver.status

    @property
    def leader(self) -> str | None:
        """The id of the leader, as far as this member knows."""
        return self.status.leader

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, unless it was deposed without knowing yet."""
        return self.status.is_leader

    def new_proposal_id(self) -> tuple[int, int]:
        """Return what identifies a command, for one that is to be sent again if need be."""
        self._sequence += 1
        return self._proposer, self._sequence

    async def propose(
        self, command: Any, timeout_s: float = 5.0, request: tuple[int, int] | None = None
    ) -> Any:
        """Have a command applied by all, and return its result here.

        It is sent again while there is time, and applied once. Raises the error that the machine
        refused it with; ``Unavailable`` when it surely was not applied; ``TimedOut`` when it may
        have been, or still may be: then the same ``request`` may be proposed again, soon.
        """
        request = request or self.new_proposal_id()
        body = codec.encode_proposal(Proposal(codec.COMMAND_VERSION, *request, command))
        result = await self._agreed(codec.REGULAR, body, timeout_s)
        if isinstance(result, Refused):
            raise BY_CODE.get(result.code, GoqError)(result.detail)
        return result

    async def barrier(self, timeout_s: float = 5.0) -> None:
        """Return once all that was committed before this call is applied here."""
        await self._agreed(codec.NO_OP, b"", timeout_s)

    async def add_member(self, spec: str, timeout_s: float = 10.0) -> None:
        """Add a member, as ``n4=10.0.0.4:9080``, which runs already and knows the others.

        All members must be there and have what is committed: remove first what is lost for good.
        The disk should be named, as in ``n4=10.0.0.4:9080/DISK``: nobody else is let in by this id
        then, as whoever had it before. ``Conflict`` if it is a member with another disk; that is
        removed first, and an address is changed in the same way.
        """
        check_member(spec)
        await self._change("add", spec, timeout_s)

    async def remove_member(self, id_: str, timeout_s: float = 10.0) -> None:
        """Remove a member, which is not told; it should be stopped. ``Conflict`` for the leader."""
        await self._change("rem", check_member(id_), timeout_s)

    async def transfer_leadership(self, to: str | None = None, timeout_s: float = 10.0) -> None:
        """Hand the leadership to another member; only the leader can, others get ``Conflict``."""
        if not self.is_leader:
            raise Conflict(f"this node does not lead; ask the leader, {self.leader or 'none now'}")
        async with _deadline(timeout_s, "the leadership was not handed over"):
            while self.is_leader:
                changed = self._next_status()
                await self._call(lambda driver, done: driver.transfer_leadership(to, done))
                await asyncio.wait([changed], timeout=self._settings.timing.election_max_s)

    # How it is done

    async def _agreed(self, kind: int, body: bytes, timeout_s: float) -> Any:
        """Have a command agreed on, and return its result."""
        if self._proposals >= limits.RAFT_COMMANDS_WAITING_MAX:
            raise TooManyRequests("too many commands wait for the cluster; send fewer at once")
        self._proposals += 1
        try:
            return await self._sent(kind, body, timeout_s)
        finally:
            self._proposals -= 1

    async def _sent(self, kind: int, body: bytes, timeout_s: float) -> Any:
        """Send a command until it is applied, and return its result."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        perhaps = False
        attempt_s = 4 * self._settings.timing.election_max_s
        while (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            try:
                async with asyncio.timeout(min(left_s, attempt_s)):
                    result, reason = await self._call(
                        lambda driver, done: driver.submit(kind, body, done)
                    )
            except TimeoutError:
                perhaps = True
                continue
            if reason == FAIL_REASON.SUCCESS:
                return result
            if reason == FAIL_REASON.REQUEST_DENIED and kind == codec.MEMBERSHIP:
                raise Conflict("the leader does not take this change now")
            perhaps = perhaps or reason in _PERHAPS_APPLIED
            await asyncio.sleep(_PAUSE_S)
        if perhaps:
            raise TimedOut("the cluster did not answer in time; whether it did it is not known")
        raise Unavailable("the cluster has no leader that this node can reach; try again")

    async def _change(self, operation: str, spec: str, timeout_s: float) -> None:
        id_ = str(RaftMember(spec).id)
        what = f"the change of members was not agreed on: {operation} {id_}"
        async with self._changing, _deadline(timeout_s, what):
            while True:
                await self.barrier(timeout_s)  # then the members here are the newest
                known = {_id(member): member for member in self.status.members}
                if operation == "add" and known.get(id_, spec) != spec:
                    raise Conflict(f"{id_} is a member already, as {known[id_]}; remove it first")
                if (id_ in known) == (operation == "add"):
                    return
                if operation == "add" and len(self.status.members) >= limits.RAFT_MEMBERS_MAX:
                    raise Conflict(f"{limits.RAFT_MEMBERS_MAX} members are the most; remove one")
                if operation == "rem" and id_ == self.leader:
                    raise Conflict(f"{id_} leads; hand the leadership over first")
                try:
                    body = codec.encode_change(operation, spec)
                    await self._agreed(codec.MEMBERSHIP, body, timeout_s)
                except Conflict:
                    await asyncio.sleep(_PAUSE_S)

    async def _call(self, act: Callable[[Driver, Callable[..., None]], None]) -> tuple[Any, int]:
        """Have something done on the other thread; return what it calls back with."""
        driver, app = self._driver, asyncio.get_running_loop()
        if driver is None or self._stopping is None or self._stopping.is_set():
            raise ShuttingDown("this node is stopping, or has not started; ask another one")
        if driver.status.failure is not None:
            raise Unavailable(f"this member of the cluster has stopped: {driver.status.failure}")
        answer: asyncio.Future[tuple[Any, int]] = app.create_future()

        def done(result: Any, reason: int) -> None:
            _soon(app, lambda: _resolve(answer, (result, reason)))

        self._waiting.add(answer)
        try:
            self._tell(lambda: act(driver, done))
            return await answer
        finally:
            self._waiting.discard(answer)

    def _tell(self, call: Callable[[], Any]) -> None:
        assert self._loop is not None
        _soon(self._loop, call)

    def _next_status(self) -> asyncio.Future[None]:
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching.add(changed)
        return changed

    def _on_driver_status(self, view: RaftStatus) -> None:
        for changed in self._watching:
            _resolve(changed, None)
        self._watching.clear()
        if view.failure is not None:
            self._give_up(Unavailable(f"this member of the cluster has stopped: {view.failure}"))
        self._on_status_change(view)

    def _give_up(self, error: GoqError) -> None:
        for answer in self._waiting:
            _reject(answer, error)

    # The other thread

    def _run(self, started: asyncio.Future[None]) -> None:
        asyncio.run(self._main(started))

    async def _main(self, started: asyncio.Future[None]) -> None:
        app = self._app
        assert app is not None
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        driver = Driver(
            self._settings,
            self._machine,
            disk=self._disk,
            random=self._random,
            on_status_change=lambda view: _soon(app, lambda: self._on_driver_status(view)),
            on_applied=lambda applied: _soon(app, lambda: self._on_applied(applied)),
        )
        try:
            await driver.start()
        except Exception as error:
            failure = error
            _soon(app, lambda: _reject(started, failure))
            return
        self._driver = driver
        _soon(app, lambda: _resolve(started, None))
        await self._stopping.wait()
        driver.stop()
        if self._settings.credentials.server_tls is not None:
            await asyncio.sleep(_PARTING_S)  # until connections with TLS are gone


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # that loop has ended, and nobody waits there any more
        _log.debug("a loop has ended before it was told everything")


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
