"""Nodes tell each other what principals used of their rates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

import msgspec
import pytest

from goq import limits
from goq.access.quota_table import QuotaTable
from goq.access.rule import Principal
from goq.cluster.forwarding.quota_exchange import QuotaExchange
from goq.cluster.metadata.commands import FenceNode
from goq.cluster.metadata.state import MetadataState
from goq.errors import InvalidInput, NotAuthenticated, TooManyRequests, Unavailable
from tests.support.cluster.metadata.states import after, nodes
from tests.support.eventually import until

NAMES = ("n1", "n2", "n3")
TEAM = Principal("aaaaaaaa", "team", [], quotas={"publish_bytes_per_s": 1})


def find(principal_id: str) -> Principal:
    if principal_id != TEAM.id:
        raise NotAuthenticated("no such token")
    return TEAM


class World:
    """Nodes that call each other, but for those in ``down``; ``calls`` are those that arrived."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.fenced: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self.tables = {name: QuotaTable() for name in NAMES}
        self.exchanges = {name: QuotaExchange(name, self.state, self._call) for name in NAMES}
        for name in NAMES:
            self.exchanges[name].attach(self.tables[name], find)

    def state(self) -> MetadataState:
        return after(nodes(len(NAMES)), *(FenceNode(name, 1) for name in sorted(self.fenced)))

    async def _call(self, node: str, path: str, body: bytes) -> bytes:
        self.calls.append((node, path))
        if node in self.down:
            raise Unavailable("nobody there")
        await self.exchanges[node].handle_spent("n1", body)
        return b""

    def use(self, node: str, size_bytes: int) -> None:
        """Publish once, which puts the node in debt."""
        self.tables[node].admit(TEAM, size_bytes, monotonic())

    def debt_s(self, node: str) -> float:
        """For how long the node would refuse a publish."""
        try:
            self.tables[node].check(TEAM, monotonic())
        except TooManyRequests as error:
            return (error.retry_after_ms or 0) / 1000
        return 0.0


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        running = [asyncio.ensure_future(each.run()) for each in world.exchanges.values()]
        try:
            async with asyncio.timeout(20):
                await test(world)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(main())


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUOTA_EXCHANGE_MS", 5)


def test_what_nodes_used_together_counts_at_each_and_the_told_tell_nobody() -> None:
    async def test(world: World) -> None:
        world.use("n1", 600)
        world.use("n2", 400)
        await until(lambda: all(world.debt_s(node) > 900 for node in NAMES))
        assert sorted(world.calls) == [
            ("n1", "/internal/quotas"),
            ("n2", "/internal/quotas"),
            *[("n3", "/internal/quotas")] * 2,
        ]

    run(test)


def test_nodes_that_cannot_be_told_and_that_are_not_up_count_by_themselves() -> None:
    async def test(world: World) -> None:
        world.down.add("n2")
        world.use("n1", 300)
        await until(lambda: len(world.calls) == 2)
        assert world.debt_s("n2") == 0
        assert world.debt_s("n3") > 200
        world.down.clear()
        world.fenced.add("n3")
        world.use("n2", 500)
        await until(lambda: world.debt_s("n1") > 700)
        assert len(world.calls) == 3
        assert world.debt_s("n3") < 300

    run(test)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"a": 1}),
        msgspec.msgpack.encode([["p", "q", "", "many"]]),
        msgspec.msgpack.encode([[TEAM.id, "publish_bytes_per_s", "", -50.0]]),
        msgspec.msgpack.encode([[TEAM.id, "publish_bytes_per_s", "", float("nan")]]),
        msgspec.msgpack.encode([[TEAM.id, "publish_bytes_per_s", "", float("inf")]]),
    ],
)
def test_what_is_no_amount_is_refused_and_counts_for_nothing(body: bytes) -> None:
    async def test(world: World) -> None:
        with pytest.raises(InvalidInput):
            await world.exchanges["n2"].handle_spent("n1", body)
        assert world.debt_s("n2") == 0

    run(test)


def test_a_token_and_a_quota_that_this_node_does_not_know_are_passed_over() -> None:
    async def test(world: World) -> None:
        amounts = [
            ["bbbbbbbb", "publish_bytes_per_s", "", 50],
            [TEAM.id, "of_a_later_version", "", 50],
            [TEAM.id, "publish_bytes_per_s", "", 50],
        ]
        await world.exchanges["n2"].handle_spent("n1", msgspec.msgpack.encode(amounts))
        assert 40 < world.debt_s("n2") < 50
        assert not world.tables["n2"].spent

    run(test)
