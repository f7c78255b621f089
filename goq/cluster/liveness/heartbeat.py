"""Heartbeats of this node to the controller, their wire format, and the session they keep valid.

Sends this node's heartbeats and reports whether its session with the controller is still valid. The
controller fences a node that it has not heard for ``NODE_SESSION_TIMEOUT_MS``.

A heartbeat says for how long the node got no answers from this controller. Above
that time it counts as not sent, on both sides. So a node that is heard and hears
nothing is fenced, and a controller whose answers get lost hears no majority and hands over.

After a silence the node may have been fenced, and others may lead what it led. So the first answer
after one does not make its session valid: the node first catches up with the metadata, where it
would find that. A controller that stood still answers itself; it cannot catch up if another one was
elected meanwhile.

A controller that was cut off answers until it knows, to itself too, while another one is elected.
So an answer says how old its lease is, and counts as sent when that began. A new controller fences
nobody before the session of that time is over (see ``raft.pysyncobj.election``).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from goq import limits
from goq.broker.runtime.tasks import Tasks
from goq.clock import Clock, next_beat
from goq.cluster.controller.node_liveness import Heartbeat, HeartbeatAnswer
from goq.cluster.metadata.features import OWN_LEVEL
from goq.cluster.rpc.server import CALL_PREFIX
from goq.errors import GoqError, InvalidInput, NodeNotFound, NotLeader, TimedOut, Unavailable

_log = logging.getLogger("goq.cluster")
HAS_LEFT = (
    "this node has left the cluster; stop it. To take part again it needs an empty folder and"
    " --join"
)
HEARTBEAT = CALL_PREFIX + "heartbeat"
_ANNOUNCEMENTS = 20
_ANNOUNCE_PAUSE_S = 0.05
_CATCH_UP_PAUSE_S = 0.05
Call = Callable[[str, str, bytes], Awaitable[bytes]]
"""Calls a node by its id, with a path and a body; raises ``GoqError``."""


class HeartbeatSender:
    """Sends the heartbeats of the node ``name``.

    ``heartbeat`` returns the current heartbeat. ``on_local_heartbeat`` is this node's own
    controller. ``is_registered`` returns whether the cluster metadata lists this node, with this
    disk: while a node that joins again catches up, they list the one that had its id before.
    ``catch_up`` returns once this node follows all metadata of before the call; it raises
    ``GoqError``. ``has_diverged`` returns whether this node's metadata contradicts the cluster's:
    then it sends nothing and has no session, so that the controller fences it. ``raft_silent_s``
    returns for how long this node has heard nothing of its Raft group.
    """

    def __init__(
        self,
        name: str,
        heartbeat: Callable[[], Heartbeat],
        on_local_heartbeat: Callable[[str, Heartbeat], HeartbeatAnswer],
        call: Call,
        clock: Clock,
        is_registered: Callable[[], bool],
        catch_up: Callable[[], Awaitable[None]],
        has_diverged: Callable[[], bool],
        raft_silent_s: Callable[[], float],
    ) -> None:
        self.controller: str | None = None
        """The node that runs the controller, as far as is known."""
        self.has_left = False
        """Whether the controller knows this node no more."""
        self.clock_skews_ms: Mapping[str, int] = {}
        """How far the clock of each node is ahead, as the controller said last."""
        self._name = name
        self._heartbeat = heartbeat
        self._on_local_heartbeat = on_local_heartbeat
        self._call = call
        self._clock = clock
        self._round_trips_ms: deque[int] = deque(maxlen=limits.CLOCK_SAMPLES_MAX)
        self._is_registered = is_registered
        self._catch_up = catch_up
        self._has_diverged = has_diverged
        self._raft_silent_s = raft_silent_s
        self._acknowledged_s = -math.inf
        self._catching_up: asyncio.Task[None] | None = None
        self._unanswered_since_s: float | None = None
        self._without_levels: set[str] = set()
        self._has_controller = asyncio.Event()
        self._tasks = Tasks()

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        try:
            while True:
                await next_beat(limits.NODE_HEARTBEAT_MS / 1000)
                self._tasks.start(self.send())  # one that hangs does not delay the next
        finally:
            self._tasks.cancel()

    async def send(self) -> None:
        """Send one heartbeat; a failure is made good by the next."""
        try:
            await self._send()
        except NodeNotFound:
            self._acknowledged_s = -math.inf  # others may lead by now
            if self._is_registered() and not self.has_left:
                self.has_left = True
                _log.warning(HAS_LEFT)
        except GoqError as error:
            _log.debug("no heartbeat: %s", error)

    async def announce(self) -> None:
        """Make the controller hear of this start; raise ``GoqError`` if it does not for a while.

        Waits until a controller is known. A node that starts learns its URL a little later.
        """
        await self._has_controller.wait()
        for tries_left in reversed(range(_ANNOUNCEMENTS)):
            try:
                for _ in range(2):  # the first may not count, as earlier ones got no answer
                    with suppress(NodeNotFound):  # it is heard, and registered later
                        await self._send()
                break
            except (NotLeader, TimedOut, Unavailable):
                if not tries_left:
                    raise
                await asyncio.sleep(_ANNOUNCE_PAUSE_S)
            except GoqError as error:  # the registration says why
                _log.debug("the controller does not take this start: %s", error)
                break

    async def _send(self) -> None:
        controller, sent_s = self.controller, self._now_s()
        if controller is None or self._has_diverged():
            return
        if self._unanswered_since_s is None:
            self._unanswered_since_s = sent_s
        heartbeat = self._heartbeat()._replace(
            clock_ms=self._clock.wall_ms(),
            round_trip_ms=min(self._round_trips_ms, default=0),
            unanswered_ms=int((sent_s - self._unanswered_since_s) * 1000),
        )
        if controller == self._name:
            answer = self._on_local_heartbeat(self._name, heartbeat)
        else:
            try:
                data = await self._send_to(controller, heartbeat)
            except (TimedOut, Unavailable):
                raise
            except GoqError:
                self._note_answer(controller, sent_s)
                raise
            answer = decode_heartbeat_answer(data)
            round_trip_s = self._now_s() - sent_s
            self._round_trips_ms.append(int(round_trip_s * 1000))
        self.clock_skews_ms = answer.clock_skews_ms
        self._note_answer(controller, sent_s)
        self.has_left = False
        if not heartbeat.is_unanswered:  # else the controller did not count it
            self._note_acknowledged(sent_s - answer.lease_age_ms / 1000)

    def _note_acknowledged(self, sent_s: float) -> None:
        if self._is_silent():
            if self._catching_up is not None:
                self._catching_up.cancel()  # it may have begun before the node was fenced
            self._catching_up = self._tasks.start(self._catch_up_after_silence())
        self._acknowledged_s = max(self._acknowledged_s, sent_s)

    async def _catch_up_after_silence(self) -> None:
        while True:
            try:
                await self._catch_up()
                break
            except GoqError as error:
                _log.debug("this node does not know the newest metadata yet: %s", error)
                await asyncio.sleep(_CATCH_UP_PAUSE_S)
        self._catching_up = None

    def _note_answer(self, controller: str, sent_s: float) -> None:
        if controller == self.controller:
            self._unanswered_since_s = max(self._unanswered_since_s or sent_s, sent_s)

    async def _send_to(self, controller: str, heartbeat: Heartbeat) -> bytes:
        if controller not in self._without_levels:
            try:
                return await self._call(controller, HEARTBEAT, encode_heartbeat(heartbeat))
            except InvalidInput:  # an earlier version, which refuses unknown fields
                self._without_levels.add(controller)
        return await self._call(controller, HEARTBEAT, encode_heartbeat(heartbeat, for_level=0))

    def set_controller(self, controller: str | None) -> None:
        """Set the controller; it may be the same node, upgraded meanwhile."""
        self.controller = controller
        (self._has_controller.clear if controller is None else self._has_controller.set)()
        self._without_levels.clear()
        self._round_trips_ms.clear()
        self._unanswered_since_s = None

    def has_session(self) -> bool:
        """Whether the controller cannot have had others lead what this node led.

        It fences a node whose heartbeats do not come, and calls one unfit that does not answer in
        the Raft group. Time counts from when a heartbeat was sent. The controller counts from when
        it arrived, which is later. So a node that was suspended or cut off finds out here, before
        it learns what was decided meanwhile.
        """
        return self._catching_up is None and not self._has_diverged() and not self._is_silent()

    def _is_silent(self) -> bool:
        silent_s = self._now_s() - self._acknowledged_s
        return (
            silent_s >= limits.NODE_SESSION_TIMEOUT_MS / 1000
            or self._raft_silent_s() >= limits.RAFT_SESSION_TIMEOUT_MS / 1000
        )

    def _now_s(self) -> float:
        """Return the time by the machine: that of a loop is as old as what the loop is doing."""
        return self._clock.uptime_us() / 1_000_000


class _Wire(msgspec.Struct, frozen=True, array_like=True):
    """The first fields are what a version without feature levels sends, and all that it accepts."""

    incarnation: int
    unfit_reason: str
    deleted: list[int]
    damaged: list[tuple[int, int]]
    repaired: list[tuple[int, int]]
    stopping: bool
    disk: str
    feature_level: int = 0
    clock_ms: int = 0
    round_trip_ms: int = 0
    unanswered_ms: int = 0
    unreachable: list[str] = []


_FIELDS_BEFORE_LEVELS = 7


def encode_heartbeat(heartbeat: Heartbeat, *, for_level: int = OWN_LEVEL) -> bytes:
    """Return a heartbeat as bytes, for a controller that knows the features up to a level."""
    fields = [
        heartbeat.incarnation,
        heartbeat.unfit_reason,
        sorted(heartbeat.deleted),
        sorted(heartbeat.damaged),
        sorted(heartbeat.repaired),
        heartbeat.stopping,
        heartbeat.disk,
        heartbeat.feature_level,
        heartbeat.clock_ms,
        heartbeat.round_trip_ms,
        heartbeat.unanswered_ms,
        sorted(heartbeat.unreachable),
    ]
    return msgspec.msgpack.encode(fields if for_level else fields[:_FIELDS_BEFORE_LEVELS])


def decode_heartbeat(data: bytes) -> Heartbeat:
    """Return a heartbeat; raise ``InvalidInput`` if the bytes are not one.

    Fields that a later version adds are ignored.
    """
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
        wire.feature_level,
        wire.clock_ms,
        wire.round_trip_ms,
        wire.unanswered_ms,
        frozenset(wire.unreachable),
    )


class _WireAnswer(msgspec.Struct, frozen=True, array_like=True):
    clock_skews_ms: dict[str, int] = {}
    lease_age_ms: Annotated[int, msgspec.Meta(ge=0)] = 0


_Answer = _WireAnswer | dict[str, int]
"""Earlier versions send the clocks alone, and make nothing of anything else."""


def encode_heartbeat_answer(answer: HeartbeatAnswer) -> bytes:
    """Return the answer to a heartbeat as bytes."""
    return msgspec.msgpack.encode(_WireAnswer(dict(answer.clock_skews_ms), answer.lease_age_ms))


def decode_heartbeat_answer(data: bytes) -> HeartbeatAnswer:
    """Return an answer; that of a version that says nothing, or something else, is empty."""
    try:
        wire: Any = msgspec.msgpack.decode(data, type=_Answer) if data else _WireAnswer()
    except msgspec.MsgspecError:
        return HeartbeatAnswer()
    if isinstance(wire, dict):
        return HeartbeatAnswer(wire)
    return HeartbeatAnswer(wire.clock_skews_ms, wire.lease_age_ms)
