"""Who is alive: every node tells the one that runs the controller, again and again."""

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
from goq.errors import GoqError, InvalidInput, NodeNotFound


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
    """Return a heartbeat; raise ``InvalidInput`` if the bytes are none."""
    try:
        wire: Any = msgspec.msgpack.decode(data, type=_Wire)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"this is no heartbeat: {error}") from None
    return Heartbeat(
        wire.incarnation,
        wire.unfit_reason,
        frozenset(wire.deleted),
        frozenset(wire.damaged),
        frozenset(wire.repaired),
        wire.stopping,
        wire.disk,
    )


_log = logging.getLogger("goq.cluster")
HEARTBEAT = "/cluster/heartbeat"
Call = Callable[[str, str, bytes], Awaitable[bytes]]
"""Calls a node by its id: the path and the body; raises ``GoqError``."""


class HeartbeatSender:
    """Of the node ``name``: ``heartbeat`` returns what there is to say now.

    ``hear`` is this node's own controller; ``is_known`` says whether the cluster lists this node.
    """

    def __init__(
        self,
        name: str,
        heartbeat: Callable[[], Heartbeat],
        hear: Callable[[str, Heartbeat], None],
        call: Call,
        is_known: Callable[[], bool],
    ) -> None:
        self.leader: str | None = None
        """Which node runs the controller, as far as is known."""
        self.has_left = False
        self._name = name
        self._heartbeat = heartbeat
        self._hear = hear
        self._call = call
        self._is_known = is_known
        self._heard_s = -math.inf
        self._tasks = Tasks()

    async def beat(self) -> None:
        """Speak again and again, until cancelled."""
        while True:
            await asyncio.sleep(limits.NODE_HEARTBEAT_MS / 1000)
            self._tasks.start(self.speak())  # one that hangs does not hold up the next

    async def speak(self) -> None:
        """Send one heartbeat; what fails is made up for by the next."""
        try:
            await self._send()
        except NodeNotFound:
            if self._is_known() and not self.has_left:
                self.has_left = True
                _log.warning(
                    "this node has left the cluster; stop it. To take part again it needs an empty"
                    " folder and --join"
                )
        except GoqError as error:
            _log.debug("no heartbeat: %s", error)

    async def _send(self) -> None:
        heartbeat = self._heartbeat()
        leader, said_s = self.leader, asyncio.get_running_loop().time()
        if leader is None:
            return
        if leader == self._name:
            self._hear(self._name, heartbeat)
        else:
            await self._call(leader, HEARTBEAT, encode_heartbeat(heartbeat))
        self._heard_s = max(self._heard_s, said_s)

    def is_heard(self) -> bool:
        """Whether the controller has heard this node so lately that it cannot have fenced it.

        From when a heartbeat was sent: the controller counts from when it came, which is later. A
        node that stood still finds out by this, before it hears what was decided meanwhile.
        """
        silent_s = asyncio.get_running_loop().time() - self._heard_s
        return silent_s < limits.NODE_SESSION_TIMEOUT_MS / 1000
