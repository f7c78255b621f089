"""Heartbeats of this node to the controller, their wire format, and the session they keep valid.

Sends this node's heartbeats and reports whether its session with the controller is still valid. The
controller fences a node that it has not heard for ``NODE_SESSION_TIMEOUT_MS``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from goq import limits
from goq.broker.runtime.tasks import Tasks
from goq.cluster.controller.node_liveness import Heartbeat
from goq.cluster.rpc.server import CALL_PREFIX
from goq.errors import GoqError, InvalidInput, NodeNotFound

_log = logging.getLogger("goq.cluster")
HEARTBEAT = CALL_PREFIX + "heartbeat"
Call = Callable[[str, str, bytes], Awaitable[bytes]]
"""Calls a node by its id, with a path and a body; raises ``GoqError``."""


class HeartbeatSender:
    """Sends the heartbeats of the node ``name``.

    ``heartbeat`` returns the current heartbeat. ``on_local_heartbeat`` is this node's own
    controller. ``is_registered`` returns whether the cluster metadata lists this node.
    """

    def __init__(
        self,
        name: str,
        heartbeat: Callable[[], Heartbeat],
        on_local_heartbeat: Callable[[str, Heartbeat], None],
        call: Call,
        is_registered: Callable[[], bool],
    ) -> None:
        self.controller: str | None = None
        """The node that runs the controller, as far as is known."""
        self.has_left = False
        self._name = name
        self._heartbeat = heartbeat
        self._on_local_heartbeat = on_local_heartbeat
        self._call = call
        self._is_registered = is_registered
        self._acknowledged_s = -math.inf
        self._tasks = Tasks()

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            await asyncio.sleep(limits.NODE_HEARTBEAT_MS / 1000)
            self._tasks.start(self.send())  # one that hangs does not delay the next

    async def send(self) -> None:
        """Send one heartbeat; a failure is made good by the next."""
        try:
            await self._send()
        except NodeNotFound:
            if self._is_registered() and not self.has_left:
                self.has_left = True
                _log.warning(
                    "this node has left the cluster; stop it. To take part again it needs an empty"
                    " folder and --join"
                )
        except GoqError as error:
            _log.debug("no heartbeat: %s", error)

    async def _send(self) -> None:
        heartbeat = self._heartbeat()
        controller, sent_s = self.controller, asyncio.get_running_loop().time()
        if controller is None:
            return
        if controller == self._name:
            self._on_local_heartbeat(self._name, heartbeat)
        else:
            await self._call(controller, HEARTBEAT, encode_heartbeat(heartbeat))
        self._acknowledged_s = max(self._acknowledged_s, sent_s)

    def has_session(self) -> bool:
        """Whether the controller heard this node so recently that it cannot have fenced it.

        Time counts from when a heartbeat was sent. The controller counts from when it arrived,
        which is later. So a node that was suspended finds out here, before it learns what was
        decided meanwhile.
        """
        silent_s = asyncio.get_running_loop().time() - self._acknowledged_s
        return silent_s < limits.NODE_SESSION_TIMEOUT_MS / 1000


class _Wire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    incarnation: int
    unfit_reason: str
    deleted: list[int]
    damaged: list[tuple[int, int]]
    repaired: list[tuple[int, int]]
    stopping: bool
    disk: str


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Return a heartbeat as bytes."""
    return msgspec.msgpack.encode(
        _Wire(
            heartbeat.incarnation,
            heartbeat.unfit_reason,
            sorted(heartbeat.deleted),
            sorted(heartbeat.damaged),
            sorted(heartbeat.repaired),
            heartbeat.stopping,
            heartbeat.disk,
        )
    )


def decode_heartbeat(data: bytes) -> Heartbeat:
    """Return a heartbeat; raise ``InvalidInput`` if the bytes are not one."""
    try:
        wire: Any = msgspec.msgpack.decode(data, type=_Wire)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"not a heartbeat: {error}") from None
    return Heartbeat(
        wire.incarnation,
        wire.unfit_reason,
        frozenset(wire.deleted),
        frozenset(wire.damaged),
        frozenset(wire.repaired),
        wire.stopping,
        wire.disk,
    )
