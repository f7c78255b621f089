"""Runs the controller on the node that leads the Raft group, and on no other.

Decisions follow from the metadata and the nodes' liveness (see ``controller.controller``), and are
proposed like any other command. A node that takes over continues from the metadata.

A node whose heartbeat is overdue is *probed*: if its machine refuses the connection, the process
has ended, and the controller need not wait for the session timeout.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable
from itertools import groupby

from goq import limits
from goq.broker.runtime.tasks import Tasks
from goq.clock import Clock
from goq.cluster.controller.clock_skew import skewed_nodes
from goq.cluster.controller.controller import decide, is_deaf
from goq.cluster.controller.node_liveness import Heartbeat, HeartbeatAnswer, NodeLiveness
from goq.cluster.controller.port_probe import is_port_closed
from goq.cluster.controller.unsettled_partitions import UnsettledPartitions
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.commands import AnyCommand, ChangePartitions, ElectLeader, RemoveNode
from goq.cluster.metadata.features import has_batches
from goq.cluster.metadata.results import Accepted
from goq.errors import Conflict, GoqError, NodeNotFound, NotLeader
from goq.event_loop import wait_for_event

_log = logging.getLogger("goq.cluster")

PortProbe = Callable[[str], Awaitable[bool]]
"""Returns whether a URL's port is closed for certain; False if that is not known."""


class ControllerRunner:
    """Receives heartbeats and runs the controller, while this node leads the Raft group.

    ``remove_raft_member`` removes a node from the Raft group; it raises ``GoqError`` if that must
    not happen now. ``is_port_closed_at`` returns whether an overdue node has certainly ended.
    ``reachable_members`` returns the nodes that answer in the Raft group, with this one; none if no
    other does. ``hand_over`` gives its leadership to another node; it raises ``GoqError`` if none
    can take it. ``lease_age_s`` returns for how long another node may have led the Raft group by
    now, without this one knowing.
    """

    def __init__(
        self,
        metadata: MetadataClient,
        remove_raft_member: Callable[[str], Awaitable[None]],
        clock: Clock,
        is_port_closed_at: PortProbe = is_port_closed,
        *,
        reachable_members: Callable[[], Collection[str]] = tuple,
        hand_over: Callable[[], Awaitable[None]] | None = None,
        lease_age_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._metadata = metadata
        self._reachable_members = reachable_members
        self._hand_over = hand_over
        self._lease_age_s = lease_age_s
        self._handed_over_ms = -limits.CONTROLLER_HANDOVER_PAUSE_MS
        self._remove_raft_member = remove_raft_member
        self._clock = clock
        self._clock_skews_ms: dict[str, int] = {}
        self._skewed: frozenset[str] = frozenset()
        self._is_port_closed = is_port_closed_at
        self._unsettled_partitions = UnsettledPartitions()
        self._probing: set[str] = set()
        self._tasks = Tasks()
        self._liveness: NodeLiveness | None = None
        self._changed = asyncio.Event()

    @property
    def is_active(self) -> bool:
        """Whether this node runs the controller."""
        return self._liveness is not None

    def on_leadership_change(self, is_leader: bool, silent_before_s: float = 0.0) -> None:
        """Start or stop to decide: this node gained or lost the leadership of the Raft group.

        For ``silent_before_s`` no other node had led a majority of the group.
        """
        if is_leader != (self._liveness is not None):
            started = NodeLiveness.start(self._now_ms(), int(1000 * silent_before_s))
            self._liveness = started if is_leader else None
            self._clock_skews_ms, self._skewed = {}, frozenset()
            self._changed.set()

    def on_state_change(self) -> None:
        """Run the controller soon: the metadata has changed."""
        self._changed.set()

    def receive_heartbeat(self, node: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Record a node's heartbeat; return for how long another controller may have led, too.

        Raises ``NotLeader`` where another node runs the controller.
        Raises ``NodeNotFound`` if the cluster has no such node: it has not joined, or was removed.
        Raises ``Conflict`` if the node's version of goq is too old for what the cluster uses.
        """
        if self._liveness is None:
            raise NotLeader("another node runs the controller now")
        level = self._metadata.state.features.level
        if heartbeat.feature_level < level:
            raise Conflict(
                f"node {node} has an earlier version of goq, without the features of level {level}"
            )
        before = self._liveness.received.get(node)
        self._liveness = self._liveness.with_heartbeat(
            node, heartbeat, self._now_ms(), wall_ms=self._clock.wall_ms()
        )
        if before is None or not before.heartbeat.says_the_same_as(heartbeat):
            self._changed.set()
        if node not in self._metadata.state.nodes:
            raise NodeNotFound(f"there is no node {node} in the cluster")
        age_ms = min(1000 * self._lease_age_s(), limits.NODE_SESSION_TIMEOUT_MS)
        return HeartbeatAnswer(self._clock_skews_ms, math.ceil(age_ms))

    async def run(self) -> None:
        """Run the controller after each change and at intervals, until cancelled."""
        while True:
            pause_s = None if self._liveness is None else self._pause_ms(self._liveness) / 1000
            await wait_for_event(self._changed, pause_s)
            self._changed.clear()
            await self._run_once()

    def _now_ms(self) -> int:
        """Return the time by the machine: that of a loop is as old as what the loop is doing."""
        return self._clock.uptime_us() // 1000

    def _pause_ms(self, liveness: NodeLiveness) -> int:
        """Return the time to the next pass: while all nodes are heard, until one may be overdue."""
        until_ms = liveness.quiet_until_ms(self._metadata.state.nodes)
        quiet_ms = 0 if until_ms is None else until_ms + 1 - self._now_ms()
        return quiet_ms if quiet_ms > 0 else limits.CONTROLLER_INTERVAL_MS

    async def _run_once(self) -> None:
        if self._liveness is None:
            return
        self._liveness = self._liveness.tick(self._now_ms())
        state, reachable = self._metadata.state, self._reachable_members()
        silent = state.nodes.keys() - reachable if reachable else ()
        self._liveness = self._liveness.with_raft_silence(silent)
        self._probe_overdue_nodes(self._liveness)
        self._compare_clocks(self._liveness)
        if is_deaf(state, self._liveness, reachable):
            await self._hand_over_controller()
        if self._liveness is None:
            return
        commands = decide(
            state, self._liveness, reachable=reachable, unsettled=self._unsettled_partitions
        )
        for command in with_batches(commands) if has_batches(state) else commands:
            try:
                result = await self._propose(command)
            except GoqError as error:
                _log.info("the controller's %s failed: %s", type(command).__name__, error)
                return
            _log.info("%s", result.done)

    def _compare_clocks(self, liveness: NodeLiveness) -> None:
        clocks = liveness.clocks(self._metadata.state.nodes)
        self._clock_skews_ms = {name: clock.skew_ms for name, clock in clocks.items()}
        before, self._skewed = self._skewed, skewed_nodes(self._clock_skews_ms, self._skewed)
        for name in sorted(self._skewed - before):
            _log.warning(
                "the clock of node %s is %+.1f s off the median of the nodes",
                name,
                self._clock_skews_ms[name] / 1000,
            )
        for name in sorted(before & self._clock_skews_ms.keys() - self._skewed):
            _log.warning("the clock of node %s is right again", name)

    async def _hand_over_controller(self) -> None:
        """Give the controller to another node, at most once in a while: it may hear no more."""
        now_ms = self._now_ms()
        pause_over = now_ms - self._handed_over_ms >= limits.CONTROLLER_HANDOVER_PAUSE_MS
        if self._hand_over is None or not pause_over:
            return
        self._handed_over_ms = now_ms
        _log.warning(
            "this node hears too few nodes, though they answer in the Raft group; another node is"
            " to run the controller"
        )
        try:
            await self._hand_over()
        except GoqError as error:
            _log.warning("no other node took the controller over: %s", error)

    async def _propose(self, command: AnyCommand) -> Accepted:
        """Propose a command; a node leaves the Raft group before the metadata forgets it.

        In this order a new controller finds in the metadata what is left to do. And the removed
        node never learns of its removal, after which it would join again.
        """
        if isinstance(command, RemoveNode):
            await self._remove_raft_member(command.node)
        return await self._metadata.propose(command)

    def _probe_overdue_nodes(self, liveness: NodeLiveness) -> None:
        for name, node in self._metadata.state.nodes.items():
            overdue = node.is_up and liveness.is_overdue(name, node.incarnation, liveness.ticked_ms)
            if overdue and name not in self._probing:
                self._probing.add(name)
                self._tasks.start(self._probe(name, node.incarnation, node.http_url))

    async def _probe(self, name: str, incarnation: int, url: str) -> None:
        sent_ms = self._now_ms()
        try:
            if await self._is_port_closed(url) and self._liveness is not None:
                self._liveness = self._liveness.with_refused_connection(name, incarnation, sent_ms)
                self._changed.set()
        finally:
            self._probing.discard(name)


def with_batches(commands: Iterable[AnyCommand]) -> list[AnyCommand]:
    """Return the commands with consecutive elections in one each."""
    batched: list[AnyCommand] = []
    for elects, group in groupby(commands, lambda command: isinstance(command, ElectLeader)):
        some = list(group)
        while elects and len(some) > 1:
            batch = some[: limits.PARTITION_CHANGES_MAX]
            del some[: limits.PARTITION_CHANGES_MAX]
            batched.append(
                ChangePartitions(tuple(each for each in batch if isinstance(each, ElectLeader)))
            )
        batched += some
    return batched
