"""Reads of a node's own and other nodes' writes of the metadata.

A node answers by the metadata that it has reconciled its topics with. Three waits make every node
answer by an acknowledged change:

- A change is acknowledged when every node that is up has reconciled it (:meth:`spread`). A node
  that does not answer for ``limits.METADATA_SPREAD_TIMEOUT_MS`` is not waited for. If it was
  stopped or cut off meanwhile, it has lost its session, and leads nothing. One that answers that it
  is not there yet, as it deletes much, is waited for up to ``limits.METADATA_SPREAD_MS_MAX``.
- A node that starts, or may have been fenced, is not waited for before the cluster knows that it is
  up. Until it has reconciled that, and is in session, it catches up before it shows or changes
  metadata (:attr:`must_catch_up`).
- A miss is answered when it holds after a read index (:meth:`catch_up`): a barrier in the Raft log,
  as in Raft's linearizable reads (Ongaro 2014, section 6.4).

Requests share barriers: those that arrive while one is under way wait for the next. A barrier
begins at most every ``limits.METADATA_BARRIER_PAUSE_MS``, however many requests miss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from goq import limits
from goq.cluster.metadata.state import MetadataState
from goq.cluster.rpc.server import CALL_PREFIX, RpcHandler
from goq.errors import GoqError, InvalidFrame, RouteNotFound, Unavailable

RECONCILED = CALL_PREFIX + "reconciled"
_RETRY_S = 0.05

Call = Callable[[str, str, bytes, int], Awaitable[bytes]]
"""Calls a node by id, with a path, a body, and how long it may wait; raises ``GoqError``."""


class _ReconciledRequest(msgspec.Struct, frozen=True, array_like=True):
    version: int
    wait_ms: int


class SharedBarrier:
    """Barriers in the Raft log, each for all requests that came before it began."""

    def __init__(self, barrier: Callable[[float], Awaitable[None]]) -> None:
        self._barrier = barrier
        self._next: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Return after a barrier that began after this call; raise its error."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        await asyncio.shield(self._next)

    async def _run(self) -> None:
        while (waiting := self._next) is not None:
            self._next = None
            try:
                await self._barrier(limits.METADATA_BARRIER_TIMEOUT_MS / 1000)
            except GoqError as error:
                waiting.set_exception(error)
                waiting.exception()  # without a waiter left it must not cause a warning
            else:
                waiting.set_result(None)
            await asyncio.sleep(limits.METADATA_BARRIER_PAUSE_MS / 1000)


class MetadataFreshness:
    """The waits of the node ``name``, started as ``incarnation``.

    ``barrier`` is that of its Raft member. ``has_session`` returns whether this node cannot have
    been fenced, ``raft_silent_s`` for how long it has heard nothing of its Raft group.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        state: Callable[[], MetadataState],
        barrier: Callable[[float], Awaitable[None]],
        call: Call,
        has_session: Callable[[], bool],
        raft_silent_s: Callable[[], float],
    ) -> None:
        self.reconciled_version = -1
        """The version of the metadata that this node's topics follow."""
        self._has_session = has_session
        self._raft_silent_s = raft_silent_s
        self._is_up = False
        self._could_catch_up = True
        self._name = name
        self._incarnation = incarnation
        self._state = state
        self._barrier = SharedBarrier(barrier)
        self._call = call
        self._reconciled: asyncio.Future[None] | None = None

    @property
    def version(self) -> int:
        """The version of the metadata that this node has, reconciled or not."""
        return self._state().version

    @property
    def must_catch_up(self) -> bool:
        """Whether changes may have been acknowledged that this node does not answer by."""
        return not (self._is_up and self._has_session())

    @property
    def is_cut_off(self) -> bool:
        """Whether this node could not catch up, and has not heard its Raft group since."""
        silent_s = limits.RAFT_SESSION_TIMEOUT_MS / 1000
        return not self._could_catch_up and self._raft_silent_s() >= silent_s

    def handlers(self) -> dict[str, RpcHandler]:
        """Return the handlers by path."""
        return {RECONCILED: self.handle_reconciled}

    def on_reconciled(self, state: MetadataState) -> None:
        """Note that this node's topics follow a state of the metadata, perhaps an older one."""
        self.reconciled_version = state.version
        own = state.nodes.get(self._name)
        self._is_up = own is not None and own.incarnation == self._incarnation and own.is_up
        if self._reconciled is not None:
            self._reconciled.set_result(None)
            self._reconciled = None

    async def catch_up(self) -> None:
        """Return when this node answers by all changes acknowledged before this call.

        Raises ``Unavailable`` if that cannot be known in time; at once while it is cut off.
        """
        try:
            if self.is_cut_off:
                raise Unavailable("the Raft group is silent")
            async with asyncio.timeout(limits.METADATA_BARRIER_TIMEOUT_MS / 1000):
                await self._barrier.wait()
                await self._wait_reconciled(self._state().version)
            self._could_catch_up = True
        except (TimeoutError, Unavailable) as error:
            self._could_catch_up = False
            raise Unavailable(
                "this node cannot ask the cluster for its newest metadata now; ask another node",
                retry_after_ms=500,
            ) from error

    async def spread(self) -> None:
        """Return when every node that is up answers by the metadata that this node has."""
        version = self._state().version
        others = [n for n, node in self._state().nodes.items() if node.is_up and n != self._name]
        async with asyncio.TaskGroup() as waits:
            waits.create_task(self._wait_here(version))
            for node in others:
                waits.create_task(self._wait_at(node, version))

    async def handle_reconciled(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Answer when this node has reconciled a version, or the time is over."""
        try:
            request = msgspec.msgpack.decode(body, type=_ReconciledRequest)
        except msgspec.MsgspecError as error:
            raise InvalidFrame(f"this call cannot be read: {error}") from None
        wait_ms = min(request.wait_ms, limits.METADATA_SPREAD_TIMEOUT_MS)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._wait_reconciled(request.version)
        except TimeoutError:
            pass
        return [msgspec.msgpack.encode(self.reconciled_version)]

    async def _wait_reconciled(self, version: int) -> None:
        while self.reconciled_version < version:
            if self._reconciled is None:
                self._reconciled = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._reconciled])

    async def _wait_here(self, version: int) -> None:
        try:
            async with asyncio.timeout(limits.METADATA_SPREAD_MS_MAX / 1000):
                await self._wait_reconciled(version)
        except TimeoutError:
            pass

    async def _wait_at(self, node: str, version: int) -> None:
        """Wait until another node has reconciled a version, is silent, or is not up any more."""
        loop = asyncio.get_running_loop()
        silence_s = limits.METADATA_SPREAD_TIMEOUT_MS / 1000
        end = loop.time() + limits.METADATA_SPREAD_MS_MAX / 1000
        until = loop.time() + silence_s
        while (left_s := min(until, end) - loop.time()) > 0:
            known = self._state().nodes.get(node)
            if known is None or not known.is_up:
                return
            wait_ms = int(left_s * 500)  # it answers before it counts as silent
            body = msgspec.msgpack.encode(_ReconciledRequest(version, wait_ms))
            try:
                async with asyncio.timeout(left_s):
                    answer = await self._call(node, RECONCILED, body, wait_ms)
                if msgspec.msgpack.decode(answer, type=int) >= version:
                    return
                until = loop.time() + silence_s
            except RouteNotFound:
                return  # a version of goq without this call
            except (GoqError, msgspec.MsgspecError, TimeoutError):
                pass
            await asyncio.sleep(_RETRY_S)
