"""Exchange between nodes of what principals have used of their rates.

A node that used something tells all nodes that are up after ``limits.QUOTA_EXCHANGE_MS``, and
sleeps otherwise. What cannot be told is dropped: nodes that do not reach each other count by
themselves, as nodes of an earlier version do.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

import msgspec

from goq import limits
from goq.access.quota_table import QuotaTable
from goq.access.rule import Principal
from goq.access.spent_amounts import SpentAmount, SpentAmounts
from goq.broker.runtime.tasks import Tasks
from goq.cluster.metadata.state import MetadataState
from goq.cluster.rpc.server import CALL_PREFIX, RpcHandler
from goq.errors import GoqError, InvalidInput, NotAuthenticated

_log = logging.getLogger("goq.cluster")
SPENT: Final = CALL_PREFIX + "quotas"
_AMOUNTS_PER_CALL: Final = 1_000
_decoder: Final = msgspec.msgpack.Decoder(list[SpentAmount])
Call = Callable[[str, str, bytes], Awaitable[bytes]]
"""Calls a node by its id, with a path and a body; raises ``GoqError``."""


class QuotaExchange:
    """The exchange of the node ``name``; it does nothing before :meth:`attach`."""

    def __init__(self, name: str, state: Callable[[], MetadataState], call: Call) -> None:
        self._name = name
        self._state = state
        self._call = call
        self._quotas: QuotaTable | None = None
        self._find: Callable[[str], Principal] | None = None
        self._has_spent = asyncio.Event()
        self._waiting: dict[str, SpentAmounts] = {}
        self._telling: set[str] = set()
        self._tasks = Tasks()

    def attach(self, quotas: QuotaTable, find: Callable[[str], Principal]) -> None:
        """Exchange the use of ``quotas``; ``find`` returns a principal by its id, or raises
        ``NotAuthenticated``.
        """
        self._quotas, self._find = quotas, find
        quotas.spent = SpentAmounts(self._has_spent.set)

    def handlers(self) -> dict[str, RpcHandler]:
        """Return the handlers by path."""
        return {SPENT: self.handle_spent}

    async def run(self) -> None:
        """Tell the other nodes until cancelled."""
        while True:
            await self._has_spent.wait()
            await asyncio.sleep(limits.QUOTA_EXCHANGE_MS / 1000)
            self._has_spent.clear()
            self._tell_all()

    def _tell_all(self) -> None:
        assert self._quotas is not None
        assert self._quotas.spent is not None
        amounts = self._quotas.spent.take(limits.SPENT_AMOUNTS_MAX)
        nodes = self._state().nodes
        others = {name for name, node in nodes.items() if node.is_up and name != self._name}
        for gone in self._waiting.keys() - others:
            del self._waiting[gone]
        for node in others:
            self._waiting.setdefault(node, SpentAmounts()).add_all(amounts)
            if node not in self._telling:
                self._telling.add(node)
                self._tasks.start(self._tell(node))

    async def _tell(self, node: str) -> None:
        """Tell a node all that waits for it; one that is slow gets sums."""
        try:
            while waiting := self._waiting.get(node):
                body = msgspec.msgpack.encode(waiting.take(_AMOUNTS_PER_CALL))
                await self._call(node, SPENT, body)
        except GoqError as error:
            _log.debug("%s was not told what principals used here: %s", node, error)
        finally:
            self._telling.discard(node)

    async def handle_spent(self, node: str, body: bytes) -> list[bytes | memoryview]:
        """Take what principals used on another node from their buckets here."""
        try:
            amounts = _decoder.decode(body)
        except msgspec.DecodeError as error:
            raise InvalidInput(f"{node} told of no amounts: {error}") from None
        if self._quotas is None or self._find is None:
            return []
        for spent in amounts:
            if not 0 < spent.amount < math.inf:
                raise InvalidInput(f"{node} told of an amount of {spent.amount}")
            try:
                principal = self._find(spent.principal)
            except NotAuthenticated:
                continue  # revoked, or not known here yet
            self._quotas.take_remote(principal, spent, monotonic())
        return []
