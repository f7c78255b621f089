"""The sizes of what principals have stored on other nodes, for the quota ``stored_bytes``.

A node asks the others for a principal that uses it, at most every ``limits.QUOTA_STORED_MS``, and
goes on meanwhile with what it knows. A node that does not answer counts with what it told last, as
long as it is up; then others lead its partitions, and count them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

import msgspec

from goq import limits
from goq.access.rule import Principal
from goq.broker.runtime.tasks import Tasks
from goq.cluster.metadata.state import MetadataState
from goq.cluster.rpc.server import CALL_PREFIX, RpcHandler
from goq.errors import GoqError, InvalidInput, NotAuthenticated

_log = logging.getLogger("goq.cluster")
STORED: Final = CALL_PREFIX + "stored"
Call = Callable[[str, str, bytes], Awaitable[bytes]]
"""Calls a node by its id, with a path and a body; raises ``GoqError``."""


class _Known(msgspec.Struct):
    """The answers of the other nodes for a principal, by node, and when they were asked."""

    asked_s: float
    by_node: dict[str, int] = {}
    is_asking: bool = False


class StoredBytes:
    """The sizes of the node ``name`` and its peers; other nodes hold 0 before :meth:`attach`."""

    def __init__(self, name: str, state: Callable[[], MetadataState], call: Call) -> None:
        self._name = name
        self._state = state
        self._call = call
        self._count: Callable[[Principal], int] | None = None
        self._find: Callable[[str], Principal] | None = None
        self._known: dict[str, _Known] = {}
        self._tasks = Tasks()

    def attach(self, count: Callable[[Principal], int], find: Callable[[str], Principal]) -> None:
        """Answer other nodes by ``count``, which returns what the topics of a principal hold here.

        ``find`` returns a principal by its id, or raises ``NotAuthenticated``.
        """
        self._count, self._find = count, find

    def handlers(self) -> dict[str, RpcHandler]:
        """Return the handlers by path."""
        return {STORED: self.handle_stored}

    def elsewhere(self, principal: Principal) -> int:
        """Return what the topics of a principal hold on other nodes, as far as they told."""
        now_s = monotonic()
        known = self._known.get(principal.id)
        if known is None:
            if len(self._known) >= limits.TOKENS_MAX:
                self._known.clear()
            known = self._known[principal.id] = _Known(-limits.QUOTA_STORED_MS / 1000)
        if not known.is_asking and now_s - known.asked_s >= limits.QUOTA_STORED_MS / 1000:
            known.asked_s, known.is_asking = now_s, True
            self._tasks.start(self._ask_all(principal.id, known))
        others = self._others() if known.by_node else ()
        return sum(known.by_node.get(node, 0) for node in others)

    def _others(self) -> list[str]:
        nodes = self._state().nodes
        return [name for name, node in nodes.items() if node.is_up and name != self._name]

    async def _ask_all(self, principal_id: str, known: _Known) -> None:
        """Ask all nodes, and know what they told at once: of a partition that moves, not twice."""
        others = self._others()
        try:
            told = await asyncio.gather(*(self._ask(node, principal_id) for node in others))
            known.by_node = {
                node: known.by_node.get(node, 0) if size_bytes is None else size_bytes
                for node, size_bytes in zip(others, told, strict=True)
            }
        finally:
            known.is_asking = False

    async def _ask(self, node: str, principal_id: str) -> int | None:
        try:
            answer = await self._call(node, STORED, msgspec.msgpack.encode(principal_id))
            return msgspec.msgpack.decode(answer, type=int)
        except (GoqError, msgspec.DecodeError) as error:
            _log.debug("%s did not tell what topics hold there: %s", node, error)
            return None

    async def handle_stored(self, node: str, body: bytes) -> list[bytes | memoryview]:
        """Return what the topics of a principal hold here."""
        try:
            principal_id = msgspec.msgpack.decode(body, type=str)
        except msgspec.DecodeError as error:
            raise InvalidInput(f"{node} asked for no principal: {error}") from None
        held_bytes = 0
        if self._count is not None and self._find is not None:
            try:
                held_bytes = self._count(self._find(principal_id))
            except NotAuthenticated:  # revoked, or not known here yet
                held_bytes = 0
        return [msgspec.msgpack.encode(held_bytes)]
