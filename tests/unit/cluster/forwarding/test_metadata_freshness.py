"""A node waits for the metadata that it may lack, and for nodes that lack what it has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from goq import limits
from goq.cluster.forwarding.metadata_freshness import MetadataFreshness, SharedBarrier
from goq.errors import RouteNotFound, ShuttingDown, TimedOut, Unavailable
from tests.support.cluster.replication.loop import SimLoop, run_simulated


class _Raft:
    """Barriers that end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[asyncio.Future[None]] = []

    async def barrier(self, _timeout_s: float) -> None:
        self.begun.append(asyncio.get_running_loop().create_future())
        await self.begun[-1]

    async def wait_for(self, number: int) -> asyncio.Future[None]:
        while len(self.begun) < number:
            await asyncio.sleep(0.001)
        return self.begun[number - 1]


def _run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    run_simulated(bounded())


def test_requests_that_come_during_a_barrier_share_the_next_one() -> None:
    async def test() -> None:
        raft = _Raft()
        shared = SharedBarrier(raft.barrier)
        early = [asyncio.ensure_future(shared.wait()) for _ in range(100)]
        first = await raft.wait_for(1)
        late = [asyncio.ensure_future(shared.wait()) for _ in range(100)]
        await asyncio.sleep(0.01)
        first.set_result(None)
        await asyncio.gather(*early)
        assert not any(each.done() for each in late)
        (await raft.wait_for(2)).set_result(None)
        await asyncio.gather(*late)
        assert len(raft.begun) == 2

    _run(test)


def test_a_barrier_serves_the_others_when_one_that_waits_is_cancelled() -> None:
    async def test() -> None:
        raft = _Raft()
        shared = SharedBarrier(raft.barrier)
        one, other = (asyncio.ensure_future(shared.wait()) for _ in range(2))
        first = await raft.wait_for(1)
        one.cancel()
        first.set_result(None)
        await other

    _run(test)


def test_the_error_of_a_barrier_is_that_of_its_requests_alone() -> None:
    async def test() -> None:
        raft = _Raft()
        shared = SharedBarrier(raft.barrier)
        one = asyncio.ensure_future(shared.wait())
        (await raft.wait_for(1)).set_exception(TimedOut("no leader"))
        with pytest.raises(TimedOut):
            await one
        other = asyncio.ensure_future(shared.wait())
        (await raft.wait_for(2)).set_result(None)
        await other

    _run(test)


def test_a_miss_waits_until_the_topics_follow_what_the_barrier_brought() -> None:
    async def test() -> None:
        raft, state = _Raft(), _state(version=5)
        freshness = _freshness("n1", lambda: state, raft.barrier, _nobody)
        freshness.on_reconciled(_state(5))
        asking = asyncio.ensure_future(freshness.catch_up())
        barrier = await raft.wait_for(1)
        state.version = 7
        barrier.set_result(None)
        for version in (5, 6):
            await asyncio.sleep(0.01)
            assert not asking.done()
            freshness.on_reconciled(_state(version))
        freshness.on_reconciled(_state(7))
        await asking

    _run(test)


def test_a_node_that_cannot_reach_the_cluster_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_BARRIER_TIMEOUT_MS", 50)

    async def refuse(_timeout_s: float) -> None:
        raise ShuttingDown("stopping")

    async def test() -> None:
        state = _state(version=5)
        for barrier in (_Raft().barrier, refuse):  # the first never answers
            freshness = _freshness("n1", lambda: state, barrier, _nobody)
            with pytest.raises(Unavailable, match="ask another node"):
                await freshness.catch_up()

    _run(test)


def test_a_change_waits_for_all_nodes_that_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_SPREAD_TIMEOUT_MS", 5_000)

    async def test() -> None:
        state = _state(version=5, n1=True, n2=True, n3=True, n4=False, n5=True)
        others = {name: _node(name, state) for name in ("n2", "n3")}
        asked: list[str] = []

        async def call(node: str, _path: str, body: bytes, _wait_ms: int) -> bytes:
            asked.append(node)
            if node == "n5":
                raise RouteNotFound("an older version")
            (answer,) = await others[node].handle_reconciled("n1", body)
            return bytes(answer)

        freshness = _freshness("n1", lambda: state, _Raft().barrier, call)
        spreading = asyncio.ensure_future(freshness.spread())
        await asyncio.sleep(0.01)
        freshness.on_reconciled(_state(5))
        others["n2"].on_reconciled(_state(5))
        await asyncio.sleep(0.01)
        assert not spreading.done()
        others["n3"].on_reconciled(_state(6))
        await spreading
        assert sorted(asked) == ["n2", "n3", "n5"]

    _run(test)


def test_a_change_waits_no_longer_for_a_node_that_is_fenced_or_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "METADATA_SPREAD_TIMEOUT_MS", 300)

    async def test() -> None:
        state = _state(version=5, n1=True, n2=True, n3=True)
        silent: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def call(node: str, _path: str, _body: bytes, _wait_ms: int) -> bytes:
            if node == "n3":
                return await silent
            state.nodes["n2"].is_up = False
            raise Unavailable("gone")

        freshness = _freshness("n1", lambda: state, _Raft().barrier, call)
        freshness.on_reconciled(_state(5))
        began = asyncio.get_running_loop().time()
        await freshness.spread()
        assert 0.2 < asyncio.get_running_loop().time() - began < 5

    _run(test)


@pytest.mark.parametrize(("follows_after_s", "waits_s"), [(6.0, 6.0), (60.0, 10.0)])
def test_a_change_waits_for_a_node_that_answers_and_is_slow_to_follow_but_not_for_ever(
    follows_after_s: float, waits_s: float
) -> None:
    loop = SimLoop()

    async def call(_node: str, _path: str, _body: bytes, wait_ms: int) -> bytes:
        await asyncio.sleep(wait_ms / 1000)
        return msgspec.msgpack.encode(5 if loop.time() >= follows_after_s else 4)

    async def test() -> None:
        state = _state(version=5, n1=True, n2=True)
        freshness = _freshness("n1", lambda: state, _Raft().barrier, call)
        freshness.on_reconciled(_state(5))
        began_s = loop.time()
        await freshness.spread()
        assert loop.time() - began_s == pytest.approx(waits_s, abs=1.5)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test())


def test_a_node_answers_how_far_it_is_when_the_time_is_over() -> None:
    async def test() -> None:
        node = _node("n2", _state(version=3))
        node.on_reconciled(_state(3))
        (answer,) = await node.handle_reconciled("n1", msgspec.msgpack.encode((9, 20)))
        assert msgspec.msgpack.decode(answer) == 3

    _run(test)


def test_a_node_catches_up_unless_it_follows_that_it_is_up_since_its_start_and_is_in_session() -> (
    None
):
    has_session = True
    freshness = _node("n1", _state(version=3), has_session=lambda: has_session)
    assert freshness.must_catch_up
    before = _state(3, n1=True)
    before.nodes["n1"].incarnation = 6
    for state in (before, _state(4, n1=False)):
        freshness.on_reconciled(state)
        assert freshness.must_catch_up
    for version, is_up in ((5, True), (6, False), (7, True)):
        freshness.on_reconciled(_state(version, n1=is_up))
        assert freshness.must_catch_up is not is_up
    has_session = False
    assert freshness.must_catch_up


def test_a_node_that_is_cut_off_tries_to_catch_up_once() -> None:
    async def test() -> None:
        raft, silent_s = _Raft(), 2.0
        freshness = _freshness(
            "n1", lambda: _state(3), raft.barrier, _nobody, silent_s=lambda: silent_s
        )
        freshness.on_reconciled(_state(3))
        for number, error in enumerate((Unavailable("no leader"), None), start=1):
            assert not freshness.is_cut_off
            catching_up = asyncio.ensure_future(freshness.catch_up())
            barrier = await raft.wait_for(number)
            if error is None:
                barrier.set_result(None)
                await catching_up
            else:
                barrier.set_exception(error)
                with pytest.raises(Unavailable):
                    await catching_up
                assert freshness.is_cut_off
                with pytest.raises(Unavailable):
                    await freshness.catch_up()
                assert len(raft.begun) == number
                silent_s = 0.0  # it hears the others again
            assert freshness.must_catch_up

    _run(test)


def _state(version: int, **is_up: bool) -> Any:
    nodes = {name: SimpleNamespace(is_up=up, incarnation=7) for name, up in is_up.items()}
    return SimpleNamespace(version=version, nodes=nodes)


def _freshness(
    name: str,
    state: Callable[[], Any],
    barrier: Callable[[float], Awaitable[None]],
    call: Any,
    has_session: Callable[[], bool] = lambda: False,
    silent_s: Callable[[], float] = lambda: 0.0,
) -> MetadataFreshness:
    return MetadataFreshness(name, 7, state, barrier, call, has_session, silent_s)


def _node(
    name: str, state: Any, has_session: Callable[[], bool] = lambda: False
) -> MetadataFreshness:
    return _freshness(name, lambda: state, _Raft().barrier, _nobody, has_session)


async def _nobody(_node: str, _path: str, _body: bytes, _wait_ms: int) -> bytes:
    raise Unavailable("there is no other node")
