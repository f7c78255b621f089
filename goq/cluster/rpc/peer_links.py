"""The HTTP links between nodes: which node reaches which, found by probes.

A node probes every other node that the metadata lists, each ``limits.LINK_PROBE_MS``, and half as
often while the stream with it gives signs of life: most cuts end these too. A probe that fails, or
has no answer for ``limits.LINK_TIMEOUT_MS``, makes the node *unreachable* from here; the next
answer makes it reachable again. A node is reachable until its first probe has ended.

Probes and their answers carry what each node knows of all links, with its age (gossip). So a node
knows whom a third node reaches, also when it does not reach that node itself. What is older than
``limits.LINK_VIEW_AGE_MS`` does not count.

A relay for a node that is unreachable from here is a third node that this node reaches, and that
reaches the other. The relay sends directly: a request takes at most one more hop, and cannot loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from goq import limits
from goq.broker.runtime.tasks import Tasks
from goq.clock import next_beat
from goq.cluster.metadata.state import MetadataState, NodeMetadata
from goq.cluster.rpc.server import CALL_PREFIX, RpcHandler
from goq.errors import GoqError, InvalidInput, NotLeader, PartitionOffline, TimedOut, Unavailable

_log = logging.getLogger("goq.cluster")
PROBE = CALL_PREFIX + "links"
T = TypeVar("T")

Probe = Callable[[str, str, bytes, float], Awaitable[bytes]]
"""Calls a node by URL, with a path, a body and a timeout in seconds; raises ``GoqError``."""
_Views = dict[str, tuple[int, list[str]]]
"""What nodes do not reach, by node, with the age of that knowledge in ms."""


class _View(NamedTuple):
    """The nodes that some node does not reach, as of a time of this node's event loop."""

    known_s: float
    unreachable: frozenset[str]


class PeerLinks:
    """The links of the node ``name``, and what it knows of those of other nodes.

    ``is_alive`` returns whether a node gives signs of life over its stream.
    """

    def __init__(
        self,
        name: str,
        state: Callable[[], MetadataState],
        probe: Probe,
        is_alive: Callable[[str], bool] = lambda _node: False,
    ) -> None:
        self._name = name
        self._state = state
        self._probe = probe
        self._lost_s: dict[str, float] = {}
        self._views: dict[str, _View] = {}
        self._is_alive = is_alive
        self._probing: set[str] = set()
        self._spared: set[str] = set()
        """The nodes that the last round did not probe."""
        self._turn = 0
        self._up: frozenset[str] = frozenset()
        self._change: asyncio.Future[None] | None = None
        self._tasks = Tasks()

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            await next_beat(limits.LINK_PROBE_MS / 1000)
            others = self._state().nodes.keys() - {self._name}
            for gone in (self._lost_s.keys() | self._views.keys()) - others:
                self._lost_s.pop(gone, None)
                self._views.pop(gone, None)
            due = others - self._probing
            alive = {n for n in due - self._spared if self.is_reachable(n) and self._is_alive(n)}
            self._spared = alive
            for node in sorted(due - alive):
                self._tasks.start(self._probe_node(node))

    async def _probe_node(self, node: str) -> None:
        """Probe one node, once more if this node stood still: the answer was there, and not read.

        Then the second probe counts in any case.
        """
        self._probing.add(node)
        began_s = _now_s()
        try:
            error = await self._failure_of_probe(node)
            if error and _now_s() - began_s > 1.5 * limits.LINK_TIMEOUT_MS / 1000:
                error = await self._failure_of_probe(node)
            self._set_reachable(node, error)
        finally:
            self._probing.discard(node)

    async def _failure_of_probe(self, node: str) -> str:
        """Return why a node is unreachable, empty for any answer of it, a refusal too."""
        url = self._state().nodes[node].http_url
        body = msgspec.msgpack.encode(self._encodable_views())
        try:
            self._merge(await self._probe(url, PROBE, body, limits.LINK_TIMEOUT_MS / 1000))
        except Unavailable as error:
            return str(error)
        except GoqError:
            pass
        return ""

    def handlers(self) -> dict[str, RpcHandler]:
        """Return the handlers by path."""
        return {PROBE: self.handle_probe}

    async def handle_probe(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Take what another node knows of the links, and answer with what this node knows."""
        self._merge(body)
        return [msgspec.msgpack.encode(self._encodable_views())]

    def is_reachable(self, node: str) -> bool:
        """Whether the last probe of a node was answered."""
        return node not in self._lost_s

    @property
    def reaches_none(self) -> bool:
        """Whether no other node is reachable from here."""
        return self._state().nodes.keys() - {self._name} <= self._lost_s.keys()

    def lost_nodes(self) -> frozenset[str]:
        """Return the nodes that are unreachable from here for ``limits.LINK_REPORT_MS``."""
        since_s = _now_s() - limits.LINK_REPORT_MS / 1000
        return frozenset(node for node, lost_s in self._lost_s.items() if lost_s <= since_s)

    def unreachable_by_node(self) -> Mapping[str, list[str]]:
        """Return the nodes that are up and that some node does not reach, by that node."""
        return {
            node: found
            for node, view in sorted(self._fresh_views().items())
            if (found := sorted(other for other in view.unreachable if self._is_up(other)))
        }

    def relay_to(self, node: str) -> str | None:
        """Return the node to relay over, None to send directly.

        Raises ``NotLeader`` while a node is unreachable for a short time only: another may be about
        to lead. After ``limits.FORWARD_LEADER_WAIT_S`` it raises ``PartitionOffline``.
        """
        lost_s = self._lost_s.get(node)
        if lost_s is None:
            return None
        views = self._fresh_views()
        relays = sorted(
            other
            for other, view in views.items()
            if other not in (self._name, node)
            and self.is_reachable(other)
            and node not in view.unreachable
            and self._is_up(other)
        )
        if relays:
            self._turn += 1
            return relays[self._turn % len(relays)]
        detail = f"node {node} cannot be reached, neither from here nor over another node"
        if _now_s() - lost_s < limits.FORWARD_LEADER_WAIT_S:
            raise NotLeader(detail, retry_after_ms=500)
        raise PartitionOffline(f"{detail}; goq cluster status says more", retry_after_ms=1000)

    async def unless_lost(self, node: str, work: Awaitable[T]) -> T:
        """Return the result of a request to a node.

        Raises ``TimedOut`` when the node has been unreachable for ``limits.LINK_LOST_GRACE_MS``, or
        fenced for ``limits.FENCED_GRACE_MS``: the node may have carried the request out.
        """
        asked = asyncio.ensure_future(work)
        until_s: float | None = None
        try:
            while True:
                timeout_s = None if until_s is None else until_s - _now_s()
                if timeout_s is not None and timeout_s <= 0:
                    raise TimedOut(
                        f"node {node} cannot be reached any more, or leads no more",
                        retry_after_ms=500,
                    )
                changed = self._next_change()
                if self.is_reachable(node) and self._is_up(node):
                    until_s = None
                else:
                    is_up = self._is_up(node)
                    grace_ms = limits.LINK_LOST_GRACE_MS if is_up else limits.FENCED_GRACE_MS
                    due_s = _now_s() + grace_ms / 1000
                    if until_s is None or due_s < until_s:
                        until_s = due_s
                        continue
                waits: set[asyncio.Future[Any]] = {asked, changed}
                await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    return asked.result()
        finally:
            if not asked.done():
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
            elif not asked.cancelled():
                asked.exception()  # the caller may be cancelled as the request ends

    def on_metadata_change(self) -> None:
        """Look again whether the nodes of waiting requests are up."""
        up = frozenset(name for name, node in self._state().nodes.items() if node.is_up)
        if up != self._up:
            self._up = up
            self._notify()

    def _next_change(self) -> asyncio.Future[None]:
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    def _notify(self) -> None:
        if self._change is not None:
            self._change.set_result(None)
            self._change = None

    def _is_up(self, node: str) -> bool:
        known: NodeMetadata | None = self._state().nodes.get(node)
        return known is not None and known.is_up

    def _set_reachable(self, node: str, error: str = "") -> None:
        if not error and self._lost_s.pop(node, None) is not None:
            _log.warning("this node reaches node %s again", node)
            self._notify()
        elif error and node not in self._lost_s:
            self._lost_s[node] = _now_s()
            self._notify()
            if self._is_up(node):
                _log.warning("this node does not reach node %s: %s", node, error)

    def _fresh_views(self) -> dict[str, _View]:
        oldest_s = _now_s() - limits.LINK_VIEW_AGE_MS / 1000
        fresh = {node: view for node, view in self._views.items() if view.known_s >= oldest_s}
        return {**fresh, self._name: _View(_now_s(), frozenset(self._lost_s))}

    def _encodable_views(self) -> _Views:
        now_s = _now_s()
        return {
            node: (round((now_s - view.known_s) * 1000), sorted(view.unreachable))
            for node, view in self._fresh_views().items()
        }

    def _merge(self, data: bytes) -> None:
        """Take views that are newer than those known here; raises ``InvalidInput``."""
        try:
            views = msgspec.msgpack.decode(data, type=_Views)
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"these are no links: {error}") from None
        now_s, nodes = _now_s(), self._state().nodes
        for node, (age_ms, unreachable) in views.items():
            known_s = now_s - max(age_ms, 0) / 1000
            known = self._views.get(node)
            if node != self._name and node in nodes and (known is None or known.known_s < known_s):
                self._views[node] = _View(known_s, frozenset(unreachable))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
