"""The controller at work: on the node that leads the Raft group, and on no other.

It decides by what the state says and who has spoken (see ``metadata.controller``); what it decided
is proposed like anybody's. If another node takes over it goes on from the state.

A node that does not speak is *knocked* at: where its machine refuses the connection the process has
ended, and nobody needs to wait until it has been silent for long enough.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import urlsplit

from goq import limits
from goq.broker.runtime.tasks import Tasks
from goq.cluster.controller.controller import decide
from goq.cluster.controller.node_liveness import Heartbeat, NodeLiveness
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.commands import AnyCommand, RemoveNode
from goq.cluster.metadata.results import Accepted
from goq.errors import GoqError, NodeNotFound, NotLeader

_log = logging.getLogger("goq.cluster")

PortProbe = Callable[[str], Awaitable[bool]]
"""Says of a node's URL whether nobody listens there; False where that is not known."""


async def is_port_closed(url: str) -> bool:
    """Whether the machine of a URL is there and refuses connections to its port."""
    parts = urlsplit(url)
    connecting = asyncio.open_connection(parts.hostname, parts.port)
    try:
        _, writer = await asyncio.wait_for(connecting, limits.NODE_SESSION_TIMEOUT_MS / 1000)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False


class ControllerRunner:
    """Hears heartbeats and decides, while this node is the one to.

    ``take_out`` takes a node out of the Raft group; it raises ``GoqError`` if that is not to be
    now. ``knock`` tells of a node that is late whether it is surely gone.
    """

    def __init__(
        self,
        proposing: MetadataClient,
        take_out: Callable[[str], Awaitable[None]],
        knock: PortProbe = is_port_closed,
    ) -> None:
        self._proposing = proposing
        self._take_out = take_out
        self._knock = knock
        self._knocking: set[str] = set()
        self._tasks = Tasks()
        self._liveness: NodeLiveness | None = None
        self._changed = asyncio.Event()

    def on_leadership_change(self, is_leader: bool) -> None:
        """Hear whether this node leads the Raft group now."""
        if is_leader != (self._liveness is not None):
            self._liveness = NodeLiveness.start(_now_ms()) if is_leader else None
            self._changed.set()

    def on_state_change(self) -> None:
        """Look now: the state has changed."""
        self._changed.set()

    def receive_heartbeat(self, node: str, heartbeat: Heartbeat) -> None:
        """Take a node's heartbeat; raise ``NotLeader`` where another node is to hear it.

        Raises ``NodeNotFound`` if there is no such node: it has not come yet, or it has left.
        """
        if self._liveness is None:
            raise NotLeader("another node runs the controller now")
        before = self._liveness.received.get(node)
        self._liveness = self._liveness.with_heartbeat(node, heartbeat, _now_ms())
        if before is None or before.heartbeat != heartbeat:
            self._changed.set()
        if node not in self._proposing.state.nodes:
            raise NodeNotFound(f"there is no node {node} in the cluster")

    async def run(self) -> None:
        """Decide whenever something has changed or may be late, until cancelled."""
        while True:
            liveness = self._liveness
            pause_s = limits.CONTROLLER_LOOK_MS / 1000 if liveness is not None else None
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):  # wait_for may lose a cancellation
                    await self._changed.wait()
            self._changed.clear()
            await self._look()

    async def _look(self) -> None:
        if self._liveness is None:
            return
        self._liveness = self._liveness.tick(_now_ms())
        self._knock_at_late(self._liveness)
        for command in decide(self._proposing.state, self._liveness):
            try:
                result = await self._do(command)
            except GoqError as error:
                _log.info("the controller's %s was not done: %s", type(command).__name__, error)
                return
            _log.info("%s", result.done)

    async def _do(self, command: AnyCommand) -> Accepted:
        """Propose a command; a node goes out of the Raft group before it is forgotten.

        In this order whoever takes over finds what is still to do in the state, and the node never
        hears that it is gone, upon which it would come back.
        """
        if isinstance(command, RemoveNode):
            await self._take_out(command.node)
        return await self._proposing.propose(command)

    def _knock_at_late(self, liveness: NodeLiveness) -> None:
        for name, node in self._proposing.state.nodes.items():
            late = node.is_up and liveness.is_overdue(name, node.incarnation, liveness.ticked_ms)
            if late and name not in self._knocking:
                self._knocking.add(name)
                self._tasks.start(self._knock_at(name, node.incarnation, node.http_url))

    async def _knock_at(self, name: str, incarnation: int, url: str) -> None:
        asked_ms = _now_ms()
        try:
            if await self._knock(url) and self._liveness is not None:
                self._liveness = self._liveness.with_refused_connection(name, incarnation, asked_ms)
                self._changed.set()
        finally:
            self._knocking.discard(name)


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
