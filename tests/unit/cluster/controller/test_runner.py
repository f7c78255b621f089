"""The runner: the handover by a node that hears too few."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from goq import limits
from goq.clock import ManualClock
from goq.cluster.controller.controller import IS_RAFT_SILENT
from goq.cluster.controller.node_liveness import Heartbeat, HeartbeatAnswer, NodeLiveness
from goq.cluster.controller.runner import ControllerRunner
from goq.cluster.metadata.commands import AnyCommand, FenceNode, SetNodeHealth
from goq.cluster.metadata.results import Accepted
from goq.cluster.metadata.state import NodeStatus
from goq.errors import Conflict, TimedOut
from tests.support.cluster.metadata.states import nodes


class Metadata:
    """Three nodes, and what is proposed of them."""

    def __init__(self) -> None:
        self.state = nodes(3)
        self.proposed: list[AnyCommand] = []

    async def propose(self, command: AnyCommand) -> Accepted:
        self.proposed.append(command)
        return Accepted(1, "done")


class Setting:
    """A runner that leads, with a clock in the test's hands."""

    def __init__(self, *, reachable: tuple[str, ...]) -> None:
        self._clock = ManualClock(0)
        self.handed_over_ms: list[int] = []
        self.fails = False
        self.lease_age_s = 0.0
        self.metadata = Metadata()
        metadata: Any = self.metadata
        self.runner = ControllerRunner(
            metadata,
            SimpleNamespace,
            self._clock,
            self._is_port_closed,
            reachable_members=lambda: reachable,
            hand_over=self._hand_over,
            lease_age_s=lambda: self.lease_age_s,
        )
        self.runner.on_leadership_change(True)

    @property
    def now_ms(self) -> int:
        return self._clock.wall_ms()

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self._clock.advance_ms(now_ms - self.now_ms)

    async def _is_port_closed(self, _url: str) -> bool:
        return False

    async def _hand_over(self) -> None:
        self.handed_over_ms.append(self.now_ms)
        if self.fails:
            raise TimedOut("nobody takes it")

    async def live(self, until_ms: int, *speakers: str) -> None:
        """Pass the time, with heartbeats of some nodes."""
        while self.now_ms < until_ms:
            self.now_ms += 200
            for name in speakers:
                self.runner.receive_heartbeat(name, Heartbeat(1, feature_level=0))
            await self.runner._run_once()


def test_a_controller_that_hears_itself_alone_hands_over_and_fences_nobody() -> None:
    async def run() -> None:
        setting = Setting(reachable=("n1", "n2", "n3"))
        await setting.live(1000, "n1", "n2", "n3")
        assert setting.handed_over_ms == []
        await setting.live(9000, "n1")
        assert setting.metadata.proposed == []
        assert len(setting.handed_over_ms) == 1
        assert setting.handed_over_ms[0] <= 1000 + limits.NODE_SESSION_TIMEOUT_MS + 400

    asyncio.run(run())


def test_a_handover_that_fails_is_tried_again_after_a_pause() -> None:
    async def run() -> None:
        setting = Setting(reachable=("n1", "n2", "n3"))
        setting.fails = True
        await setting.live(30_000, "n1")
        pauses = [
            later - sooner
            for sooner, later in zip(
                setting.handed_over_ms, setting.handed_over_ms[1:], strict=False
            )
        ]
        assert pauses
        assert min(pauses) >= limits.CONTROLLER_HANDOVER_PAUSE_MS
        assert setting.metadata.proposed == []

    asyncio.run(run())


def test_nodes_that_nobody_reaches_are_fenced() -> None:
    async def run() -> None:
        setting = Setting(reachable=())
        await setting.live(1000, "n1", "n2", "n3")
        await setting.live(4000, "n1")
        assert setting.handed_over_ms == []
        assert FenceNode("n2", 1) in setting.metadata.proposed

    asyncio.run(run())


def test_a_node_that_is_heard_and_does_not_answer_in_the_raft_group_is_unfit() -> None:
    async def run() -> None:
        setting = Setting(reachable=("n1", "n2"))
        await setting.live(limits.RAFT_SILENT_UNFIT_MS, "n1", "n2", "n3")
        assert setting.metadata.proposed == []
        await setting.live(limits.RAFT_SILENT_UNFIT_MS + 600, "n1", "n2", "n3")
        assert setting.metadata.proposed[0] == SetNodeHealth("n3", 1, IS_RAFT_SILENT)

    asyncio.run(run())


def test_a_node_without_the_clusters_features_has_no_session() -> None:
    async def run() -> None:
        setting = Setting(reachable=())
        state = setting.metadata.state

        setting.metadata.state = replace(state, features=replace(state.features, level=1))
        with pytest.raises(Conflict, match="earlier version"):
            setting.runner.receive_heartbeat("n1", Heartbeat(1, feature_level=0))
        setting.runner.receive_heartbeat("n1", Heartbeat(1, feature_level=1))

    asyncio.run(run())


def test_the_next_pass_is_when_a_node_may_be_overdue_and_soon_once_one_is() -> None:
    liveness = NodeLiveness.start(0)
    known = nodes(3).nodes

    def after_heartbeats(now_ms: int, *names: str) -> NodeLiveness:
        heard = liveness
        for name in names:
            heard = heard.with_heartbeat(name, Heartbeat(1), now_ms)
        return heard.tick(now_ms)

    assert liveness.quiet_until_ms(known) is None
    liveness = after_heartbeats(100, "n1", "n2", "n3")
    assert liveness.quiet_until_ms(known) == 400
    liveness = after_heartbeats(300, "n1", "n3")
    assert liveness.quiet_until_ms(known) == 400
    assert not any(liveness.is_overdue(name, 1, 400) for name in known)
    assert liveness.is_overdue("n2", 1, 401)
    liveness = after_heartbeats(401, "n1", "n3")
    assert liveness.quiet_until_ms(known) is None
    liveness = after_heartbeats(410, "n2")
    assert liveness.quiet_until_ms(known) == 701
    fenced = {**known, "n3": replace(known["n3"], status=NodeStatus.FENCED)}
    assert liveness.quiet_until_ms(fenced) is None
    assert liveness.quiet_until_ms({**known, "n2": replace(known["n2"], incarnation=2)}) is None


def test_a_controller_of_nodes_that_are_heard_passes_when_one_may_be_overdue() -> None:
    setting = Setting(reachable=("n1", "n2", "n3"))
    pauses_ms: list[int] = []

    async def run() -> None:
        await setting.live(1_000, "n1", "n2", "n3")
        liveness = setting.runner._liveness
        assert liveness is not None
        for setting.now_ms in (1_000, 1_250, 1_301, 1_600):
            pauses_ms.append(setting.runner._pause_ms(liveness))

    asyncio.run(run())
    assert pauses_ms == [301, 51, limits.CONTROLLER_INTERVAL_MS, limits.CONTROLLER_INTERVAL_MS]


def test_an_answer_tells_for_how_long_another_controller_may_have_been_elected() -> None:
    setting = Setting(reachable=("n1", "n2", "n3"))
    for lease_age_s, told_ms in ((0.0, 0), (0.1301, 131), (60.0, 1000), (math.inf, 1000)):
        setting.lease_age_s = lease_age_s
        answer = setting.runner.receive_heartbeat("n1", Heartbeat(1, feature_level=0))
        assert answer == HeartbeatAnswer({}, told_ms)


def test_a_new_controller_knows_for_how_long_nobody_led() -> None:
    setting = Setting(reachable=("n1", "n2"))
    setting.runner.on_leadership_change(False)
    setting.runner.on_leadership_change(True, 0.4567)
    assert setting.runner._liveness == NodeLiveness.start(0, 456)
