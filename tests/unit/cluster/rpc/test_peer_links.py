"""A node finds out which nodes it does not reach, and over which it may relay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from goq import limits
from goq.cluster.metadata.commands import FenceNode
from goq.cluster.metadata.state import MetadataState
from goq.cluster.rpc.peer_links import PeerLinks
from goq.errors import GoqError, InvalidInput, NotLeader, PartitionOffline, TimedOut, Unavailable
from tests.support.cluster.metadata.states import after, nodes
from tests.support.cluster.replication.loop import run_simulated
from tests.support.eventually import until

NAMES = ("n1", "n2", "n3")


class World:
    """Nodes whose probes reach one another, but for the pairs in ``cut``."""

    def __init__(self) -> None:
        self.cut: set[frozenset[str]] = set()
        self.down: set[str] = set()
        self.refusing: set[str] = set()
        self.links = {name: PeerLinks(name, self.state, self._probe_of(name)) for name in NAMES}

    def state(self) -> MetadataState:
        return after(nodes(len(NAMES)), *(FenceNode(name, 1) for name in sorted(self.down)))

    def _probe_of(self, source: str) -> Callable[[str, str, bytes, float], Awaitable[bytes]]:
        async def probe(url: str, _path: str, body: bytes, _timeout_s: float) -> bytes:
            target = url.removeprefix("http://")
            if frozenset((source, target)) in self.cut:
                raise TimedOut("no answer")
            if target in self.refusing:
                raise InvalidInput("an earlier version")
            (answer,) = await self.links[target].handle_probe(source, body)
            return bytes(answer)

        return probe


def run(test: Callable[[World], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINK_PROBE_MS", 5)
    monkeypatch.setattr(limits, "LINK_LOST_GRACE_MS", 20)

    async def main() -> None:
        world = World()
        running = [asyncio.ensure_future(links.run()) for links in world.links.values()]
        try:
            async with asyncio.timeout(20):
                await test(world)
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    run_simulated(main())


def cut(world: World, one: str, other: str) -> None:
    world.cut.add(frozenset((one, other)))


def relay(world: World, source: str, target: str) -> str | None:
    try:
        return world.links[source].relay_to(target)
    except GoqError as error:
        return error.code


def test_a_node_relays_over_a_third_that_reaches_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        assert relay(world, "n1", "n3") is None
        cut(world, "n1", "n3")
        await until(lambda: relay(world, "n1", "n3") == "n2")
        assert relay(world, "n1", "n2") is None
        world.cut.clear()
        await until(lambda: relay(world, "n1", "n3") is None)

    run(test, monkeypatch)


def test_every_node_knows_who_does_not_reach_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        cut(world, "n1", "n3")
        expected = {"n1": ["n3"], "n3": ["n1"]}
        for links in world.links.values():
            await until(lambda links=links: links.unreachable_by_node() == expected)
        world.down.add("n3")
        assert world.links["n2"].unreachable_by_node() == {"n3": ["n1"]}
        world.cut.clear()
        for links in world.links.values():
            await until(lambda links=links: not links.unreachable_by_node())

    run(test, monkeypatch)


def test_a_third_node_that_does_not_reach_the_other_is_no_relay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        cut(world, "n1", "n3")
        cut(world, "n2", "n3")
        await until(lambda: relay(world, "n1", "n3") == NotLeader.code)
        monkeypatch.setattr(limits, "FORWARD_LEADER_WAIT_S", 0.05)
        await until(lambda: relay(world, "n1", "n3") == PartitionOffline.code)

    run(test, monkeypatch)


def test_a_node_that_refuses_probes_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        cut(world, "n1", "n3")
        await until(lambda: not world.links["n1"].is_reachable("n3"))
        world.refusing.add("n3")
        world.cut.clear()
        await until(lambda: world.links["n1"].is_reachable("n3"))

    run(test, monkeypatch)


def test_a_node_that_stood_still_asks_again_before_it_takes_another_for_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        pauses_s, probe = [0.1], world.links["n1"]._probe

        async def paused(url: str, path: str, body: bytes, timeout_s: float) -> bytes:
            if url == "http://n3" and pauses_s:
                await asyncio.sleep(pauses_s.pop())
                raise TimedOut("the answer took too long")
            return await probe(url, path, body, timeout_s)

        monkeypatch.setattr(limits, "LINK_TIMEOUT_MS", 20)
        world.links["n1"]._probe = paused
        await until(lambda: not pauses_s)
        await asyncio.sleep(0.2)
        assert "does not reach" not in caplog.text
        cut(world, "n1", "n3")
        pauses_s.append(0.1)
        await until(lambda: not world.links["n1"].is_reachable("n3"))

    run(test, monkeypatch)


def test_a_request_to_a_lost_node_is_given_up_and_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        for lose in (lambda: cut(world, "n1", "n3"), lambda: world.down.add("n3")):
            world.cut.clear()
            world.down.clear()
            await until(lambda: world.links["n1"].is_reachable("n3"))
            never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting = asyncio.ensure_future(world.links["n1"].unless_lost("n3", never))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            lose()
            world.links["n1"].on_metadata_change()
            with pytest.raises(TimedOut):
                await waiting
            assert never.cancelled()

    run(test, monkeypatch)


def test_a_request_keeps_its_result_and_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        async def work(error: GoqError | None) -> str:
            await asyncio.sleep(0.01)
            if error is not None:
                raise error
            return "done"

        links = world.links["n1"]
        assert await links.unless_lost("n3", work(None)) == "done"
        with pytest.raises(Unavailable, match="full"):
            await links.unless_lost("n3", work(Unavailable("full")))

    run(test, monkeypatch)


@pytest.mark.parametrize("body", [b"", b"\x91\x01", b"\x81\xa2n2\x01"])
def test_bytes_that_are_no_links_are_refused(body: bytes) -> None:
    async def main() -> None:
        with pytest.raises(InvalidInput):
            await World().links["n1"].handle_probe("n2", body)

    run_simulated(main())


def test_a_node_is_reported_once_it_was_unreachable_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        links = world.links["n1"]
        cut(world, "n1", "n2")
        await until(lambda: not links.is_reachable("n2"))
        assert links.lost_nodes() == frozenset()
        monkeypatch.setattr(limits, "LINK_REPORT_MS", 10)
        await until(lambda: links.lost_nodes() == {"n2"})
        world.cut.clear()
        await until(lambda: links.lost_nodes() == frozenset())

    monkeypatch.setattr(limits, "LINK_REPORT_MS", 60_000)
    run(test, monkeypatch)


def test_a_node_that_gives_signs_of_life_is_probed_half_as_often_until_it_gives_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alive: set[str] = {"n2"}
    probed: list[str] = []

    async def test(world: World) -> None:
        probe = world._probe_of("n1")

        async def count(url: str, path: str, body: bytes, timeout_s: float) -> bytes:
            probed.append(url.removeprefix("http://"))
            return await probe(url, path, body, timeout_s)

        links = PeerLinks("n1", world.state, count, alive.__contains__)
        running = asyncio.ensure_future(links.run())
        await until(lambda: probed.count("n3") == 20)
        assert 9 <= probed.count("n2") <= 11
        alive.clear()
        probed.clear()
        await until(lambda: probed.count("n3") == 20)
        assert 18 <= probed.count("n2") <= 21
        running.cancel()

    run(test, monkeypatch)
